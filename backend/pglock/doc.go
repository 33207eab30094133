// Package pglock keeps locks in PostgreSQL 12 or later, for teams that run it already.
//
//	b, err := pglock.Open(ctx, "postgres://app:secret@db1:5432/app?create=true")
//
// There are two strategies. Their locks do not exclude each other, so all users of a name must
// choose the same one.
//
// # Row
//
// [Row], the default, keeps a table row for each lock. It supports everything: all modes, fair
// queues on request, fences with spans, floors, downgrades, Inspect and List. A held lock occupies
// no connection, and no transaction stays open between two calls. Holds survive a restart of the
// server. If its holder dies, a hold ends with its TTL, by the server's clock.
//
// While there are waiters, one connection of the pool listens for all of them, and statements run on
// it too: a process that waits needs no other. It is closed, not returned, about ten seconds after
// the last waiter. A release notifies those whom it lets in. Waiters poll behind a pooler in transaction mode, with a pool of one
// connection, and with a driver other than pgx.
//
// Rows are never deleted, since fences are made from their numbers. A fence is the grant's number
// times 1024, plus the hand-off inside the process. Numbers increase by one, and are at least the
// server's clock in µs, so that they increase even if the table is lost.
//
// Statements that PostgreSQL aborts because of others (40001, 40P01) are retried, so sessions may
// have any isolation level. After other errors of the server the outcome is unknown: a login, a right
// or a table that is missing may come back. Only Open is final about them.
//
// # Advisory
//
// [Advisory] uses PostgreSQL's advisory locks, which belong to connections, and needs PostgreSQL 14 or later. It is for
// mutexes, and has no Inspect and List. If a holder dies, its lock is free once its socket closes; if it loses the
// network, after its TTL. A holder that loses its connection loses the lock. Only the process that holds releases.
//
// Each lock and each waiter has a connection of its own, which is taken out of the pool, kept for the next lock for some
// seconds, and closed afterwards. One connection of a limited pool is always left. Waits are cut into slices of ten seconds;
// each slice that ends without the lock is an error in PostgreSQL's log.
//
// The caller's work can be committed on the lock's connection, see [Backend.Commit]. The lease is not renewed meanwhile.
//
// # Connections
//
// Each connection of a URL is set completely when it opens, and logs in with what the files of its
// password and certificates have then. A pool of the user's own is used as it is.
//
// # Poolers
//
// A pooler in transaction mode must be declared by [Options].Pooler or pooler=transaction: then
// statements are not prepared, and waiters poll. Advisory can't be used behind one. With pgx a pooler that
// is not declared is noticed, and refused.
package pglock
