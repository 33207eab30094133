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
	leave, err := b.turns.Enter(ctx, h.lock.Key)
	if err != nil {
		return b.fail("commit", h.lock.Name, err)
	}
	defer leave()
	own, end := b.within(ctx)
	defer end()
	return b.fail("commit", h.lock.Name, h.commit(own, work))
}

func (b *Backend) holdFor(owner string) (*hold, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.holds[owner]
	switch {
	case b.closed:
		return nil, driver.ErrClosed
	case h == nil:
		return nil, fmt.Errorf("%s: commit: %w: the owner does not hold", b.Package, driver.ErrLost)
	}
	return h, nil
}

// commit is Commit in the turn of the key.
func (h *hold) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	if err := h.s.prolong(ctx, h.s.lease); err != nil {
		return h.lostBy(err)
	}
	select {
	case <-h.s.lane:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { h.s.lane <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !h.s.b.still(h) || !h.starts(true) {
		return h.lostBy(errGone)
	}
	finished := false
	defer func() {
		h.starts(false)
		if !finished { // the work has panicked
			h.rollBack(nil)
		}
	}()
	err := work(h.s.link.Tx())
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
	return h.store(ctx)
}

// lostBy says that the hold is lost, if it is.
func (h *hold) lostBy(err error) error {
	if h.s.b.still(h) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// starts notes that the caller's work has the link, or has it no more.
func (h *hold) starts(work bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.working = work
	return !h.lost
}

func (h *hold) wasRevoked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revoked
}

// rollBack ends the hold without its work. The lane is held.
func (h *hold) rollBack(cause error) error {
	ctx, cancel := context.WithTimeout(h.s.b.life, lastResort)
	defer cancel()
	h.listen(nil)
	if err := h.s.link.Undo(ctx, h.lock); err != nil {
		h.s.die(err)
		if cause != nil && !errors.Is(cause, driver.ErrLost) {
			return fmt.Errorf("%w: its connection was lost, and nothing of the work is stored: %w", driver.ErrLost, cause)
		}
		return cause
	}
	h.over()
	return cause
}

// store commits. The lane is held.
func (h *hold) store(ctx context.Context) error {
	sent := time.Now()
	err := h.s.link.Commit(ctx)
	switch {
	case err == nil:
		h.s.answered(sent)
		h.over()
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return h.rollBack(fmt.Errorf("the transaction had ended before its work was done: %w", err))
	case h.s.b.Dialect.CommitRefused(err):
		return h.rollBack(fmt.Errorf("the server refused to commit, and nothing of the work is stored: %w", err))
	}
	h.listen(nil)
	h.s.die(err)
	return fmt.Errorf("no answer to the commit: the outcome is unknown, the work may be stored or not: %w", err)
}

// over ends a hold in order. Its link has no transaction.
func (h *hold) over() {
	b := h.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[h.lock.Owner] != h {
		return
	}
	b.committed(h.lock.Owner)
	b.forget(h)
	b.settle(h.s)
}
