// Package connlock keeps locks that live on a database connection: as long as the server
// takes the connection for alive, and no longer. It is one backend over a small Dialect.
//
// # Two kinds of links
//
// A link is a connection that is pinned: taken out of the user's pool, and closed when it
// is given up, since it is not as the pool made it. Either a link has many locks (MySQL's
// GET_LOCK, PostgreSQL's session level), and up to four links of one TTL share the holds; or
// it has one, whose transaction the caller's work can join (Solo).
//
// # Trust
//
// Each link asks the server to end it when it has been silent for the TTL of its holds. The
// server measures that from a statement's end, the client trusts from before it was sent:
// trust ends first. Nothing prolongs it but an answered statement: Renew sends one for each
// link, Acquire of a known Owner one for its hold. A link without an answer for its TTL is
// closed, and its holds are lost, as a fact: nobody can use them any more.
//
// A lock ends before its TTL if its connection does: a server that restarts, a
// connection that an administrator kills. What holds on it is told when that is noticed, at
// the latest by the next renewal.
//
// A release that the link does not answer is a loss: nobody can tell whether the server had ended
// the link, and given the lock to another, before.
//
// # Numbers
//
// Fences are made of numbers in a table. A link with many locks writes them itself, and does not
// wait for a row that somebody keeps locked, since no other of its locks could be renewed meanwhile.
// Where it can't write another connection does, and the link is asked afterwards: if it
// answers, it has the lock, and whoever gets that next gets a greater number.
//
// # No two holders on one link
//
// What the server locks it gives to a link, which gets it again whenever it asks. So calls for one
// key take turns, and what a hold of this process is in the way of is refused here, before
// the server is asked. The key is what the server locks: two names may share it, and exclude
// each other then.
//
// # Waiting
//
// A Watch waits in the server's own queue, on a link that has nothing else to do, in slices:
// who waits forever holds back vacuum, and may have died long ago. It takes the lock for its
// Owner. A wait that is given up is cancelled on the server, and what it may have got in the last moment
// is given back on the same link. Where that can't be told the link is closed, and killed through
// another connection.
//
// # Connections
//
// A limited pool keeps one connection for others at any time. What needs more than are left
// fails with words that say so; waiters poll instead. A spare link is used again, also for
// another TTL.
package connlock
