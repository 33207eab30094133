package connlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"time"
)

// Lock is a lock that a connection requests.
type Lock struct{ Name, Owner string }

// Dialect speaks to one kind of server.
type Dialect interface {
	// NewConn prepares a fresh connection, which the server then ends when it is silent for longer than lease.
	NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (Conn, error)

	// Kill ends a connection through another one. nil means that it has gone.
	Kill(ctx context.Context, id string) error

	// CommitRefused reports whether err says that the server did not commit.
	CommitRefused(err error) bool
}

// Conn is a connection that has one lock at most. Its methods are not called concurrently. After an error of any but
// Commit it is closed.
type Conn interface {
	// ID identifies the connection to Kill.
	ID() string

	// Lease sets how long the server lets the connection be silent.
	Lease(ctx context.Context, lease time.Duration) error

	// Ping returns nil if the session of the server that NewConn has prepared answers. Then it has its lock.
	Ping(ctx context.Context) error

	// TryLock makes one attempt, and writes the number of the grant, as Number does.
	TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error)

	// WaitLock waits for the lock for up to slice. It writes no number.
	WaitLock(ctx context.Context, l Lock, slice time.Duration) (ok bool, err error)

	// Number writes the next number of the connection's lock. When it returns the connection has the lock: a later holder's
	// number is greater.
	Number(ctx context.Context, l Lock) (uint64, error)

	// Unlock releases the connection's lock.
	Unlock(ctx context.Context, l Lock) error

	// Alive reports whether the connection is closed, without sending anything.
	Alive() error

	// Close closes the connection.
	Close() error
}

// Joiner is a Conn on which the caller's work can be committed under the lock.
type Joiner interface {
	Conn

	// Begin returns a transaction that can't outlive the lock. ctx bounds the start only.
	Begin(ctx context.Context) (*sql.Tx, error)

	// Commit commits it.
	Commit(ctx context.Context) error

	// Rollback rolls it back.
	Rollback(ctx context.Context) error
}

// Querier sends statements: a pool, a connection or a transaction.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Discard closes a connection instead of returning it to its pool, since its settings have changed. No transaction may be
// open.
func Discard(conn *sql.Conn) error {
	HangUp(conn)
	conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	conn.Close()
	return nil
}

// HangUp closes the driver's connection: statements then fail at once.
func HangUp(conn *sql.Conn) {
	conn.Raw(func(raw any) error {
		if c, ok := raw.(sqldriver.Conn); ok {
			c.Close()
		}
		return nil
	})
}
