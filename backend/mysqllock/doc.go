// Package mysqllock keeps locks in a MySQL or MariaDB database.
//
//	b, err := mysqllock.Open(ctx, "mysql://user:password@localhost:3306/app")
//
// New uses a program's own *sql.DB. The oldest supported versions are MySQL 5.7 and
// MariaDB 10.6.
//
// # Strategies
//
// Row is the default, and the right choice unless something speaks against it: a row under a
// unique key, whose text is changed if it is still what was believed. It has all modes, fences and fair queues.
// It keeps one connection that notifies waiters while it holds locks, and up to four that wait.
// ForUpdate and Session are locks of the server, which end with their connection. Each excludes
// correctly, and Caps reports what it lacks. The comments of the constants describe the costs of
// each, and the effects of a crash.
//
// # Time and fences
//
// Leases end by the server's clock, read as µs since 1970 in UTC: time zones of
// sessions do not matter. A fence is the grant's number times 1024, plus the hand-off
// inside the process. Numbers increase by at least one, and are at least the server's
// clock in µs, so fences increase even if the table was lost or restored.
//
// # Sessions
//
// With Row each statement commits by itself. Settings of the server, of a DSN and of a
// program's own pool make no difference: each connection that decides about locks is set by one statement when
// it is opened, also if it is taken out of another pool.
package mysqllock
