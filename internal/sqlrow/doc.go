// Package sqlrow keeps locks in rows of a table, in whatever database a Dialect speaks
// to. A row is the truth about one lock, and is never deleted: its number is what fences
// are made of.
//
// Who wants a lock alone takes it by one conditional UPDATE, and gives it back by another.
// All else (readers, permits, places in line) is a list in the row, which is read, decided upon
// here, and written if the row is still the same. No transaction stays open between two
// statements: a process that hangs keeps nobody out but by what it holds.
//
// The server's clock counts, read in the statement that uses it.
package sqlrow
