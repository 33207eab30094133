// Package connlock keeps locks that live on a database connection. The server ends such a lock with
// its connection. The package is one backend over a small [Dialect].
//
// # Connections
//
// Connections are taken out of the user's pool, and closed when they are no longer needed, since
// their settings have changed. Either a connection has many locks (MySQL's GET_LOCK, PostgreSQL's
// session level), and up to four connections share the holds of one TTL; or it has one, whose
// transaction the caller's work can join (OnePerConn). One connection of a limited pool is always
// left for others. If there is no room for a lock, Acquire returns an error; waiters poll instead.
//
// # Trust
//
// Each connection asks the server to end it when it has been silent for the TTL of its holds. The
// server measures that from the end of a statement, the client from before it sent the statement, so
// the client's trust ends first. Only an answered statement prolongs it. A connection without an
// answer for its TTL is closed, and its holds are lost. So are holds whose connection the server
// ends sooner: that is noticed at the latest by the next renewal. A release without an answer is a
// loss: the server may have ended the connection before, and granted the lock to another client.
//
// # Numbers
//
// Fences are made from numbers in a table. A connection with many locks writes them itself, but does
// not wait for a row that others keep locked, since its other locks could not be renewed meanwhile.
// Then another connection writes the number, and the lock's own connection is checked afterwards: if
// it answers, it has the lock, and the next holder gets a greater number.
//
// # Two holders on one connection
//
// The server grants a lock to a connection again whenever the connection asks. So calls for one key
// take turns, and a request that conflicts with a hold of this process is refused before a statement
// is sent. The key is the server's name of the lock. Two names may share a key, and then exclude each
// other.
//
// # Waiting
//
// A Watch waits in the server's own queue, on a connection that does nothing else, and takes the
// lock for its Owner. It waits in slices: a waiter that never returns holds back vacuum, and may have
// died long ago. A wait that is given up is cancelled on the server. A lock that was granted at the
// last moment is released on the same connection. If the outcome is unknown, the connection is
// closed, and killed through another one.
package connlock
