// Package pglock keeps locks in PostgreSQL, for teams that have it already.
//
//	b, err := pglock.Open(ctx, "postgres://app:secret@db1:5432/app?create=true")
//
// There are two strategies, which know nothing of each other's locks. Choose one for all
// users of a name.
//
// [Row], the default, keeps a row for each lock in a table. It can do everything, needs no
// connection while a lock is held, and works behind any pooler. A holder that dies holds
// until its TTL has passed.
//
// [Advisory] uses PostgreSQL's advisory locks, which belong to connections. A holder that
// dies lets go at once; a held lock needs a connection that nobody else uses.
package pglock
