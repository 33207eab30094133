package connlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"
)

// Lock is what a connection is asked for.
type Lock struct {
	Name  string
	Key   string // what the server locks
	Owner string
	Meta  map[string]string
	Probe bool // only the answer matters: there is no owner, and no number

	// SeparateNumber means that the lock's connection does not write its number.
	SeparateNumber bool
}

// Dialect speaks to one kind of server.
type Dialect interface {
	// Key returns what the server locks for a name. Different names may have one key.
	Key(name string) string

	// NewConn prepares a fresh connection, which the server then ends when it is silent for longer than
	// lease.
	NewConn(ctx context.Context, conn *sql.Conn, lease time.Duration) (Conn, error)

	// Cancel ends the current statement of a connection, through another one.
	Cancel(ctx context.Context, id string) error

	// Kill ends a connection through another one. nil means that it has gone.
	Kill(ctx context.Context, id string) error

	// KillHolder ends another process's connection that has l for its Owner, if there is one.
	KillHolder(ctx context.Context, l Lock) (was bool, err error)

	// Number writes the next number of a lock that the connection with this ID has, through another
	// connection.
	Number(ctx context.Context, l Lock, id string) (uint64, error)

	// RemoveProbe removes what a Probe has left in tables, if anything.
	RemoveProbe(ctx context.Context, l Lock) error

	// CommitRefused reports whether err says that the server did not commit.
	CommitRefused(err error) bool
}

// Conn is a connection that keeps locks. Its methods send one statement at a time, and are not called
// concurrently.
type Conn interface {
	// ID identifies the connection to Cancel and Kill.
	ID() string

	// Lease sets how long the server lets the connection be silent.
	Lease(ctx context.Context, lease time.Duration) error

	// Ping sends any statement.
	Ping(ctx context.Context) error

	// TryLock makes one attempt, and returns the number of the grant. The number is 0 if Dialect.Number must
	// write it: because of SeparateNumber, or since the row is locked. It does not wait for the row.
	TryLock(ctx context.Context, l Lock) (number uint64, ok bool, err error)

	// WaitLock waits for the lock for up to slice. It writes no number.
	WaitLock(ctx context.Context, l Lock, slice time.Duration) (ok bool, err error)

	// Number writes the next number of a lock that this connection has; 0 as in TryLock. It is not called
	// with SeparateNumber.
	Number(ctx context.Context, l Lock) (uint64, error)

	// Confirm is called after Dialect.Number. nil means that the connection still has the lock.
	Confirm(ctx context.Context, l Lock) error

	// Unlock gives back a lock that this connection has. ErrLost means that the server denies that.
	Unlock(ctx context.Context, l Lock) error

	// Undo is called after an error of TryLock or WaitLock. nil means that the connection does not have the
	// lock, and works.
	Undo(ctx context.Context, l Lock) error

	// Alive reports whether the connection is closed, without sending anything.
	Alive() error

	// Tx returns the transaction that has the lock; nil if connections have many locks.
	Tx() *sql.Tx

	// Commit commits Tx. If it returns nil, the connection does not have the lock any more.
	Commit(ctx context.Context) error

	// Close closes the connection.
	Close()
}

// Querier sends statements: a pool, a connection or a transaction.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is a connection and the transaction that may be open on it.
type Tx struct {
	Conn *sql.Conn

	tx     *sql.Tx
	cancel context.CancelFunc
	stuck  chan struct{} // closed when the driver returns from Detach's rollback; nil: it is not missing
}

// errStuck means that the driver does not return from the end of a transaction.
var errStuck = errors.New("the connection does not answer the end of its transaction")

// Querier returns the transaction if there is one, and else the connection. A statement sent through the
// connection that finds it broken would close it, and database/sql then waits for the end of
// the transaction.
func (t *Tx) Querier() Querier {
	if t.tx != nil {
		return t.tx
	}
	return t.Conn
}

// Exec sends a statement. After [sql.ErrTxDone] there is no transaction any more: the caller's work had
// ended it.
func (t *Tx) Exec(ctx context.Context, text string) error {
	_, err := t.Querier().ExecContext(ctx, text)
	if errors.Is(err, sql.ErrTxDone) && t.stuck == nil {
		t.forget()
	}
	return err
}

// Raw calls f with the driver's connection.
func (t *Tx) Raw(f func(raw any) error) error {
	if t.stuck != nil {
		return errStuck // database/sql's mutex of the connection is held
	}
	return t.Conn.Raw(f)
}

// Begin starts a transaction, or returns the current one. ctx bounds the start and not the
// transaction.
func (t *Tx) Begin(ctx context.Context) (*sql.Tx, error) {
	if t.tx != nil {
		return t.tx, nil
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	tx, err := t.Conn.BeginTx(own, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	t.tx, t.cancel = tx, cancel
	return tx, nil
}

// Current returns the transaction, or nil.
func (t *Tx) Current() *sql.Tx { return t.tx }

// Finish commits or rolls back by end, such as (*sql.Tx).Commit, for a driver that respects the
// context of a transaction. If ctx ends first, the connection is unusable.
func (t *Tx) Finish(ctx context.Context, end func(*sql.Tx) error) error {
	if t.tx == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, t.cancel)
	err := end(t.tx)
	stop()
	t.forget()
	return err
}

// Detach drops a transaction that a statement has ended, so that it can't be used any more. The
// driver may send another statement for that, which can't be interrupted. If ctx ends first, the
// connection is unusable.
func (t *Tx) Detach(ctx context.Context) {
	if t.tx == nil {
		return
	}
	done := make(chan struct{})
	go func(tx *sql.Tx) {
		defer close(done)
		tx.Rollback()
	}(t.tx)
	select {
	case <-done:
		t.forget()
	case <-ctx.Done():
		t.stuck = done
	}
}

func (t *Tx) forget() {
	t.cancel()
	t.tx = nil
}

// Close closes the connection, and ends the transaction with it.
func (t *Tx) Close() {
	if t.stuck != nil {
		go func() {
			<-t.stuck
			Discard(t.Conn)
		}()
		return
	}
	if t.tx != nil {
		t.Conn.Raw(hangUp) // database/sql can't close it before the transaction has ended
		t.tx.Rollback()
		t.forget()
	}
	Discard(t.Conn)
}

// Discard closes a connection instead of returning it to its pool, since its settings have changed. No
// transaction may be open.
func Discard(conn *sql.Conn) {
	conn.Raw(func(raw any) error {
		hangUp(raw)
		return driver.ErrBadConn
	})
	conn.Close()
}

// hangUp closes the driver's connection: statements then fail at once.
func hangUp(raw any) error {
	if c, ok := raw.(driver.Conn); ok {
		c.Close()
	}
	return nil
}
