package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Commit lets the caller's own work join the transaction that has an owner's lock, and commits it: the
// work is stored if and only if the lock was held to the end. If the work returns an error, Commit
// rolls back, and the lock ends too. It returns ErrLost without beginning the work if the owner does
// not hold the lock. If the server does not answer the commit, the error says that the outcome is
// unknown.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	if err := b.errIfClosed(); err != nil {
		return err
	}
	h := b.holdOf(owner, "")
	if h == nil {
		return fmt.Errorf("%s: commit: %w: the owner does not hold", b.Package, driver.ErrLost)
	}
	own, end := b.bounded(ctx)
	defer end()
	leave, err := b.owners.Lock(own, owner)
	if err != nil {
		return b.wrapError("commit", h.lock.Name, err)
	}
	defer leave()
	return b.wrapError("commit", h.lock.Name, h.commit(own, work))
}

// commit is Commit of a hold. The connection's sem is held while the work runs.
func (h *hold) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	c := h.conn
	if err := h.extend(ctx, 0); err != nil {
		return h.orLost(err)
	}
	select {
	case <-c.sem:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { c.sem <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.setOnLost(nil); err != nil { // a waiter of this process may have the lock before the answer to the commit is here
		return h.orLost(err)
	}
	h.working.Store(true)
	finished := false
	defer func() {
		h.working.Store(false)
		if !finished { // the work has panicked
			h.rollBack(nil)
		}
	}()
	err := work(c.conn.Tx())
	finished = true
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return h.rollBack(err)
	}
	if h.revoked.Load() {
		return h.rollBack(fmt.Errorf("%w: it was released before its work was done, and nothing of the work is stored", driver.ErrLost))
	}
	return h.commitTx(ctx)
}

// rollBack ends the hold without its work.
func (h *hold) rollBack(cause error) error {
	c := h.conn
	ctx, cancel := context.WithTimeout(c.b.ctx, cleanupTime)
	defer cancel()
	if err := c.conn.Rollback(ctx); err != nil {
		c.lose()
		if cause != nil && !errors.Is(cause, driver.ErrLost) {
			return fmt.Errorf("%w: its connection was lost, and nothing of the work is stored: %w", driver.ErrLost, cause)
		}
		return cause
	}
	h.end(true)
	c.leave()
	return cause
}

// commitTx commits.
func (h *hold) commitTx(ctx context.Context) error {
	c := h.conn
	sent := time.Now()
	err := c.conn.Commit(ctx)
	switch {
	case err == nil:
		c.lastSent = sent
		h.end(true)
		c.leave()
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return h.rollBack(fmt.Errorf("the transaction had ended before its work was done: %w", err))
	case c.b.Dialect.CommitRefused(err):
		return h.rollBack(fmt.Errorf("the server refused to commit, and nothing of the work is stored: %w", err))
	}
	c.lose()
	return fmt.Errorf("no answer to the commit: the outcome is unknown, the work may be stored or not: %w", err)
}
