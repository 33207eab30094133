// Package fencesql checks fencing tokens in the transaction that uses the data, in MySQL and MariaDB,
// PostgreSQL, and SQLite, through database/sql and any driver.
//
//	guard, err := fencesql.New(fencesql.Postgres, nil)
//
//	err = guard.Do(ctx, db, "stock:7", distlock.Fence(ctx), func(tx *sql.Tx) error {
//		// read, compute, write, all through tx
//	})
//	// errors.Is(err, fence.ErrStale): another client has held the lock since
//
// # Where the fence is stored
//
// A Guard has a table of its own, distlock_guards(resource, fence), and inserts rows as needed. A
// Column is a column of your own table, in the protected row.
//
// In both cases Enter raises the stored fence to the presented one, or refuses it, and keeps the row
// locked until the transaction ends. Other transactions that enter the same resource wait for that:
// everything after Enter is one atomic step.
//
// # Enter first
//
// Call Enter before the transaction's first read, as Do does. Under REPEATABLE READ a transaction
// continues to see the data of its first read, so data that was read before Enter may be stale.
//
//   - PostgreSQL refuses such a transaction when it enters (SQLSTATE 40001), and so does SQLite
//     (SQLITE_BUSY_SNAPSHOT). Under REPEATABLE READ and SERIALIZABLE, PostgreSQL also refuses one
//     that had to wait in Enter. Roll back and start again: nothing was done.
//   - MySQL refuses nothing. Enter returns ErrSnapshot if the guarded row differs from the one that the
//     transaction sees. It can't detect transactions with the same fence, which belong to the same
//     holder: in these, call Enter first.
//
// In clusters with several writable servers that lock rows separately (Galera, group replication with
// several primaries), send all transactions of a resource to one server.
//
// A transaction whose holder is paused blocks others, as any open transaction does; nothing is lost. To
// bound that, set idle_in_transaction_session_timeout (PostgreSQL), idle_transaction_timeout (MariaDB)
// or wait_timeout (MySQL). For long work, read in one transaction and write in another, with Enter in
// both.
//
// # Cost
//
// Enter takes one statement in PostgreSQL and SQLite. In MySQL it takes two or three short ones, for
// ErrSnapshot. The transaction writes one additional row.
//
// In SQLite set busy_timeout, since transactions wait for the write lock. A transaction that enters
// first may be deferred. Otherwise begin it with BEGIN IMMEDIATE (with modernc's driver:
// _txlock=immediate).
package fencesql
