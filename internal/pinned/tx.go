package pinned

import (
	"context"
	"database/sql"
)

// Tx is the transaction of a Solo link, on its connection.
type Tx struct {
	Conn *sql.Conn

	tx     *sql.Tx
	cancel context.CancelFunc
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

// Finish commits or rolls back by end, which is (*sql.Tx).Commit or such. When ctx ends
// first the connection is of no use any more.
func (t *Tx) Finish(ctx context.Context, end func(*sql.Tx) error) error {
	if t.tx == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, t.cancel)
	err := end(t.tx)
	stop()
	t.tx.Rollback() // it may have ended already: then this sends nothing
	t.cancel()
	t.tx = nil
	return err
}

// Close closes the connection, and ends the transaction with it.
func (t *Tx) Close() {
	if t.tx != nil {
		t.Conn.Raw(hangUp) // it can't be given up before the transaction has ended
		t.tx.Rollback()
		t.cancel()
		t.tx = nil
	}
	Discard(t.Conn)
}
