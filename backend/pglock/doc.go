// Package pglock keeps locks in PostgreSQL 12 or later, for teams that have it already.
//
//	b, err := pglock.Open(ctx, "postgres://app:secret@db1:5432/app?create=true")
//
// There are two strategies, which know nothing of each other's locks. All users of a name
// choose the same.
//
// # Row
//
// [Row], the default, keeps a row for each lock in a table. It can do everything: all modes,
// fair lines on request, fences with spans, floors, downgrades, Inspect and List. No
// connection is held for a lock, and no transaction stays open between two calls. What is
// held survives a restart of the server, and ends with its TTL by the server's clock if its
// holder dies.
//
// While somebody waits one connection of the pool listens, for all who wait in this
// backend. It is closed, not given back, about ten seconds after the last of them. A release
// notifies only if the row says that somebody listens. Behind a pooler in transaction mode,
// with a pool of one connection, and with another driver than pgx, waiters poll.
//
// Rows are never deleted: their numbers are what fences are made of. A fence is the grant's
// number times 1024, plus the hand-off inside the process. Numbers increase by one, and are
// at least the server's clock in µs, so that they increase over a lost table too.
//
// What PostgreSQL gives up because of others (40001, 40P01) is repeated, so sessions may
// have any isolation level. Other errors of the server are of unknown outcome, unless they
// say that the table or a right is missing.
//
// # Advisory
//
// [Advisory] uses PostgreSQL's advisory locks, which belong to connections. It is for
// mutexes, without Inspect and List. A holder that dies lets go when its socket closes, one that
// is cut off when its TTL is over; one that loses its connection loses the lock. A release from
// another process kills the holder's connection. Behind a pooler in transaction mode it is refused.
//
// It takes connections out of the pool, and closes them when it is done. At level [Session]
// up to four have the locks of one TTL, 1000 each; at level [Transaction] each lock has one. Up to
// 16 wait, and at most half of a limited pool; the rest polls. One of a limited pool is always left.
// A wait is made of slices of ten seconds, each of which is an error in PostgreSQL's log.
//
// At level Transaction the caller's work can join the lock's transaction, see [Backend.Commit].
// Nothing renews meanwhile.
package pglock
