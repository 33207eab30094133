// Package mysqllock keeps locks in a MySQL or MariaDB database.
//
//	b, err := mysqllock.Open(ctx, "mysql://user:password@localhost:3306/app")
//
// New uses the *sql.DB that a program has already. MySQL 5.7 and MariaDB 10.6 are
// the oldest versions that work.
//
// # Strategies
//
// Row is the default and the one to choose without a reason against it: all modes,
// fences, fair lines, and no connection held but one that rings for waiters.
// UniqueIndex, Version, ForUpdate and Session are what textbooks and existing tables
// do; each excludes as it should, and Caps says what it lacks. The comments of the
// constants tell what each costs and what a crash does.
//
// # Time and fences
//
// Leases end by the server's clock, read as µs since 1970 in UTC: time zones of
// sessions do not matter. A fence is the grant's number times 1024, plus the hand-off
// inside the process. Numbers increase by one at least, and are at least the server's
// clock in µs: fences increase over a table that was lost or restored, too.
//
// # Sessions
//
// Statements commit by themselves and hold no locks between two of them. What a
// session may have set differently, such as sql_mode, time_zone or the isolation level,
// makes no difference; autocommit=0 does, and is refused by New and Open.
package mysqllock
