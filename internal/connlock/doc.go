// Package connlock keeps locks that live on a database connection. The server ends such a lock with
// its connection. The package is one backend over a small [Dialect].
//
// # Connections
//
// Connections are taken out of the user's pool, and closed when they are no longer needed, since their settings
// have changed. Either a connection has many locks (MySQL's GET_LOCK, PostgreSQL's session level), and
// up to four connections share the holds of one TTL; or it has one, whose transaction the
// caller's work can join (OnePerConn).
//
// One connection of a limited pool is always left for others. If there is no room for a lock, Acquire
// returns an error that says so; waiters poll instead. An idle connection is used again, also for another
// TTL.
//
// # Trust
//
// Each connection asks the server to end it when it has been silent for the TTL of its holds. The
// server measures that from the end of a statement, the client from before it sent the statement, so
// the client's trust ends first. Only an answered statement prolongs it: Renew sends one on each
// connection, Acquire of a known Owner one for its hold. A connection without an answer for its TTL
// is closed, and its holds are lost.
//
// A lock ends before its TTL if its connection does: the server restarts, or an administrator kills
// the connection. Its holders are notified when that is noticed, at the latest by the next renewal.
//
// A release without an answer is a loss: the server may have ended the connection before, and
// granted the lock to another client.
//
// # Numbers
//
// Fences are made from numbers in a table. A connection with many locks writes them itself, but does not wait
// for a row that others keep locked, since its other locks could not be renewed meanwhile. Then
// another connection writes the number, and the lock's own connection is asked afterwards: if it
// answers, it has the lock, and the next holder gets a greater number.
//
// # Two holders on one connection
//
// The server grants a lock to a connection, and grants it again whenever the connection asks. So calls
// for one key take turns, and a request that conflicts with a hold of this process is refused before
// the server is asked. The key is what the server locks. Two names may share a key, and then exclude
// each other.
//
// # Waiting
//
// A Watch waits in the server's own queue, on a connection that does nothing else, and takes the
// lock for its Owner. It waits in slices: a waiter that never returns holds back vacuum, and may have died long ago.
// A wait that is given up is cancelled on the server. If it was granted the lock at the last moment,
// it gives it back on the same connection. If the outcome is unknown, the connection is closed, and
// killed through another one.
package connlock
