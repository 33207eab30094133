// Package fencesql checks fencing tokens in the transaction that uses the data, in MySQL
// and MariaDB, PostgreSQL, and SQLite, through database/sql and no driver in particular.
//
//	guard, err := fencesql.New(fencesql.Postgres, nil)
//
//	err = guard.Do(ctx, db, "stock:7", distlock.Fence(ctx), func(tx *sql.Tx) error {
//		// read, compute, write, all through tx
//	})
//	// errors.Is(err, fence.ErrStale): another has held the lock meanwhile
//
// # Two places for the fence
//
// A Guard is a table of its own, distlock_guards(resource, fence), whose rows are made when
// they are needed; nothing is added to your tables. A Column is one of your own tables, in
// the row that is protected.
//
// Either way Enter raises the stored fence to the one presented, or refuses it, and the row
// stays locked until the transaction ends. Others who enter the same resource wait for
// that, so that everything in the transaction after Enter is one step.
//
// # Enter first
//
// Call Enter before the transaction's first read; Do does. Under REPEATABLE READ a
// transaction goes on seeing what was there at its first read, and what was read before
// Enter may be old.
//
//   - PostgreSQL refuses such a transaction when it enters (SQLSTATE 40001), SQLite too
//     (SQLITE_BUSY_SNAPSHOT). Under REPEATABLE READ and SERIALIZABLE PostgreSQL also refuses
//     one that had to wait in Enter. Roll back and begin again: nothing was done.
//   - MySQL refuses nothing. Enter notices if the guarded row is not what the transaction
//     sees, and answers ErrSnapshot. It can't notice others who entered with the same fence,
//     as one holder's own transactions do: there it is up to you to enter first.
//
// Where several servers can be written to and rows are locked in each by itself (Galera,
// group replication with several primaries) let all transactions of a resource go to one.
//
// A transaction in which a holder is paused keeps others waiting, as any open transaction
// does; nothing is lost. If that must be bounded set idle_in_transaction_session_timeout
// (PostgreSQL), idle_transaction_timeout (MariaDB) or wait_timeout (MySQL). Work that takes
// long is better read in one transaction and written in another, with Enter in both.
//
// # Cost
//
// One statement in PostgreSQL and SQLite. In MySQL two or three short ones, for the sake of
// ErrSnapshot. The transaction writes one row more.
//
// In SQLite set busy_timeout, since others wait for the write lock. A transaction may be
// deferred if it enters first. Otherwise begin it with BEGIN IMMEDIATE (with modernc's
// driver: _txlock=immediate).
package fencesql
