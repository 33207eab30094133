package connlock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
)

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
}

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
	if errors.Is(err, sql.ErrTxDone) {
		t.forget()
	}
	return err
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

func (t *Tx) forget() {
	t.cancel()
	t.tx = nil
}

// Close closes the connection, and ends the transaction with it.
func (t *Tx) Close() {
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
		return sqldriver.ErrBadConn
	})
	conn.Close()
}

// hangUp closes the driver's connection: statements then fail at once.
func hangUp(raw any) error {
	if c, ok := raw.(sqldriver.Conn); ok {
		c.Close()
	}
	return nil
}
