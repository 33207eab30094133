package connlock

import (
	"context"
	"database/sql"
	"time"
)

// Lock is a lock that a connection requests.
type Lock struct {
	Name  string
	Key   string // what the server locks
	Owner string
	Meta  map[string]string
	Probe bool // only the answer matters: there is no owner, and nothing is left in tables
}

// Dialect speaks to one kind of server.
type Dialect interface {
	// Key returns what the server locks for a name. Names with one key exclude each other.
	Key(name string) string

	// NewConn prepares a fresh connection, which the server then ends when it is silent for longer than
	// lease.
	NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (Conn, error)

	// Kill ends a connection through another one. nil means that it has gone.
	Kill(ctx context.Context, id string) error

	// KillHolder ends another process's connection that has l for its Owner, if there is one.
	KillHolder(ctx context.Context, l Lock) (was bool, err error)

	// Number writes the next number of a lock that the connection with this ID has, through another
	// connection.
	Number(ctx context.Context, l Lock, id string) (uint64, error)

	// CommitRefused reports whether err says that the server did not commit.
	CommitRefused(err error) bool
}

// Conn is a connection that has one lock at most. Its methods are not called concurrently. After an error of any but
// Number and Commit it is closed.
type Conn interface {
	// ID identifies the connection to Kill.
	ID() string

	// Lease sets how long the server lets the connection be silent.
	Lease(ctx context.Context, lease time.Duration) error

	// Ping returns nil if the session of the server that NewConn has prepared answers. Then it has its lock.
	Ping(ctx context.Context) error

	// TryLock makes one attempt, and returns the number of the grant. The number is 0 if Dialect.Number must
	// write it: a transaction may be rolled back, or the row is locked. It does not wait for the row.
	TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error)

	// WaitLock waits for the lock for up to slice. It writes no number.
	WaitLock(ctx context.Context, l Lock, slice time.Duration) (ok bool, err error)

	// Number writes the next number of the connection's lock; 0 as in TryLock.
	Number(ctx context.Context, l Lock) (uint64, error)

	// Confirm is called after Dialect.Number. nil means that the connection still has the lock.
	Confirm(ctx context.Context) error

	// Unlock releases the connection's lock.
	Unlock(ctx context.Context, l Lock) error

	// Alive reports whether the connection is closed, without sending anything.
	Alive() error

	// Tx returns the transaction that has the lock. It is called with Config.Joins only, as are the next two.
	Tx() *sql.Tx

	// Commit commits Tx. If it returns nil, the connection does not have the lock any more.
	Commit(ctx context.Context) error

	// Rollback rolls back Tx, and the lock ends with it.
	Rollback(ctx context.Context) error

	// Close closes the connection.
	Close()
}
