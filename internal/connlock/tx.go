package connlock

import (
	"context"
	"database/sql"
	"errors"
)

// errStuck is the answer on a connection that the driver does not return from.
var errStuck = errors.New("the connection does not answer the end of its transaction")

// Tx is a connection and the transaction that may be open on it.
type Tx struct {
	Conn *sql.Conn

	tx     *sql.Tx
	cancel context.CancelFunc
	stuck  chan struct{} // closed when Leave has an answer after all; nil: nothing is missing
}

// Querier sends statements.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Querier is what statements are to be sent through: the transaction while there is one. Sent
// through the connection, a statement that finds it broken would close it, and database/sql
// waits for the end of the transaction before it does that.
func (t *Tx) Querier() Querier {
	if t.tx != nil {
		return t.tx
	}
	return t.Conn
}

// Exec sends a statement. [sql.ErrTxDone]: the caller's work had ended the transaction, and
// there is none from now on.
func (t *Tx) Exec(ctx context.Context, text string) error {
	_, err := t.Querier().ExecContext(ctx, text)
	if errors.Is(err, sql.ErrTxDone) && t.stuck == nil {
		t.forget()
	}
	return err
}

// Raw is that of the connection.
func (t *Tx) Raw(f func(raw any) error) error {
	if t.stuck != nil {
		return errStuck // the driver's lock is taken
	}
	return t.Conn.Raw(f)
}

// Begin starts a transaction, or goes on with one that has nothing. ctx bounds the start
// and not the transaction.
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

// Current is the transaction, or nil.
func (t *Tx) Current() *sql.Tx { return t.tx }

// Finish commits or rolls back by end, which is (*sql.Tx).Commit or such, for a driver that
// heeds the context of a transaction. When ctx ends first the connection is of no use any more.
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

// Detach lets go of a transaction that a statement has ended, so that nobody can use it any more. The
// driver may send another statement for that, which nothing cuts short: when ctx ends first
// the connection is of no use any more.
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
		t.Conn.Raw(hangUp) // it can't be given up before the transaction has ended
		t.tx.Rollback()
		t.forget()
	}
	Discard(t.Conn)
}
