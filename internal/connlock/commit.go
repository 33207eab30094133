package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Commit lets the caller's own work join the transaction that has an owner's lock, and
// commits: the work and the end of the lock are one. An error of the work rolls back, and
// ends the lock too. ErrLost, before the work is begun: the owner does not hold. Where the
// server's answer to the commit is missing the error says that the outcome is unknown.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	h, err := b.holdFor(owner)
	if err != nil {
		return err
	}
	leave, err := b.keyMutex.Lock(ctx, h.lock.Key)
	if err != nil {
		return b.wrapError("commit", h.lock.Name, err)
	}
	defer leave()
	own, end := b.bounded(ctx)
	defer end()
	return b.wrapError("commit", h.lock.Name, h.commit(own, work))
}

func (b *Backend) holdFor(owner string) (*connHold, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.byOwner[owner]
	switch {
	case b.closed:
		return nil, driver.ErrClosed
	case h == nil:
		return nil, fmt.Errorf("%s: commit: %w: the owner does not hold", b.Package, driver.ErrLost)
	}
	return h, nil
}

// commit is Commit in the turn of the key.
func (h *connHold) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	if err := h.conn.extend(ctx, h.conn.lease); err != nil {
		return h.lossOr(err)
	}
	select {
	case <-h.conn.sem:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { h.conn.sem <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !h.conn.b.isCurrent(h) || !h.setWorking(true) {
		return h.lossOr(errGone)
	}
	finished := false
	defer func() {
		h.setWorking(false)
		if !finished { // the work has panicked
			h.rollBack(nil)
		}
	}()
	err := work(h.conn.conn.Tx())
	finished = true
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return h.rollBack(err)
	}
	if h.wasRevoked() {
		return h.rollBack(fmt.Errorf("%w: it was released before its work was done; nothing of that is stored", driver.ErrLost))
	}
	return h.commitTx(ctx)
}

// lossOr says that the hold is lost, if it is.
func (h *connHold) lossOr(err error) error {
	if h.conn.b.isCurrent(h) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// setWorking notes that the caller's work has the link, or has it no more.
func (h *connHold) setWorking(work bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.working = work
	return !h.lost
}

func (h *connHold) wasRevoked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revoked
}

// rollBack ends the hold without its work. The lane is held.
func (h *connHold) rollBack(cause error) error {
	ctx, cancel := context.WithTimeout(h.conn.b.life, cleanupTime)
	defer cancel()
	h.setOnLost(nil)
	if err := h.conn.conn.Undo(ctx, h.lock); err != nil {
		h.conn.lose(err)
		if cause != nil && !errors.Is(cause, driver.ErrLost) {
			return fmt.Errorf("%w: its connection was lost, and nothing of the work is stored: %w", driver.ErrLost, cause)
		}
		return cause
	}
	h.finish()
	return cause
}

// commitTx commits. The lane is held.
func (h *connHold) commitTx(ctx context.Context) error {
	sent := time.Now()
	err := h.conn.conn.Commit(ctx)
	switch {
	case err == nil:
		h.conn.answered(sent)
		h.finish()
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return h.rollBack(fmt.Errorf("the transaction had ended before its work was done: %w", err))
	case h.conn.b.Dialect.CommitRefused(err):
		return h.rollBack(fmt.Errorf("the server refused to commit, and nothing of the work is stored: %w", err))
	}
	h.setOnLost(nil)
	h.conn.lose(err)
	return fmt.Errorf("no answer to the commit: the outcome is unknown, the work may be stored or not: %w", err)
}

// finish ends a hold in order. Its link has no transaction.
func (h *connHold) finish() {
	b := h.conn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byOwner[h.lock.Owner] != h {
		return
	}
	b.noteCommitted(h.lock.Owner)
	b.removeHold(h)
	b.keepIfUnused(h.conn)
}
