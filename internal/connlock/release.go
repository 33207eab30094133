package connlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Release releases a lock. After its Commit it returns nil. The lock of another process ends with its
// connection, and so do the other locks on that connection.
func (b *Backend) Release(ctx context.Context, d driver.Hold) error {
	if err := b.errIfClosed(); err != nil {
		return err
	}
	if h := b.holdOf(d); h != nil {
		h.revoked.Store(h.working.Load()) // a Commit under way fails
	}
	err := b.withKey(ctx, b.Dialect.Key(d.Name), func(own context.Context) error { return b.release(own, d) })
	return b.wrapError("release", d.Name, err)
}

func (b *Backend) release(ctx context.Context, d driver.Hold) error {
	h := b.holdOf(d)
	switch {
	case h != nil:
		return b.unlock(ctx, h)
	case b.takeCommitted(d.Owner):
		return nil
	}
	err := b.killOrphanOf(ctx, d.Owner)
	switch {
	case b.wasLost(d.Owner):
		return driver.ErrLost // also after an error: an unknown outcome would suggest that the release may have worked
	case err != nil:
		return err
	}
	b.makeRoom()
	was, err := b.Dialect.KillHolder(ctx, Lock{Name: d.Name, Key: b.Dialect.Key(d.Name), Owner: d.Owner})
	if err == nil && !was {
		err = driver.ErrLost
	}
	return err
}

// takeCommitted reports, once, whether an owner's hold ended with its commit. Then it is lost to later releases: a
// dialect may still name its connection as the holder's.
func (b *Backend) takeCommitted(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := b.committed.has(owner)
	delete(b.committed, owner)
	if is {
		b.lost.add(owner)
	}
	return is
}

func (b *Backend) wasLost(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost.has(owner)
}

// unlock releases a hold's lock. A connection that ends without an answer may have lost the lock long
// before: that is a loss, and no unknown outcome.
func (b *Backend) unlock(ctx context.Context, h *connHold) error {
	var ended bool
	var lost error
	err := h.conn.do(ctx, func(own context.Context) error {
		h.setOnLost(nil)
		err := h.conn.conn.Unlock(own, h.lock)
		if err != nil {
			h.conn.undo(h.lock, err)
		}
		if errors.Is(err, driver.ErrLost) {
			lost = err
		}
		ended = err == nil || !h.conn.isDead()
		return nil
	})
	switch {
	case ended:
		b.endHold(h)
		return lost
	case b.ctx.Err() != nil:
		return driver.ErrClosed
	case !b.isCurrent(h):
		return fmt.Errorf("%w: %w before the release was answered", driver.ErrLost, errGone)
	}
	return err
}

// Commit lets the caller's own work join the transaction that has an owner's lock, and commits it: the
// work is stored if and only if the lock was held to the end. If the work returns an error, Commit
// rolls back, and the lock ends too. It returns ErrLost without beginning the work if the owner does
// not hold the lock. If the server does not answer the commit, the error says that the outcome is
// unknown.
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

// commit is Commit with the mutex of the key.
func (h *connHold) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	c := h.conn
	if err := c.extend(ctx); err != nil {
		return h.lossOr(err)
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
	if !c.b.isCurrent(h) {
		return h.lossOr(errGone)
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

// lossOr returns ErrLost if the hold is lost, and err otherwise.
func (h *connHold) lossOr(err error) error {
	if h.conn.b.isCurrent(h) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// rollBack ends the hold without its work. The connection's sem is held.
func (h *connHold) rollBack(cause error) error {
	ctx, cancel := context.WithTimeout(h.conn.b.ctx, cleanupTime)
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

// commitTx commits. The connection's sem is held.
func (h *connHold) commitTx(ctx context.Context) error {
	h.setOnLost(nil) // a waiter of this process may have the lock before the answer is here
	sent := time.Now()
	err := h.conn.conn.Commit(ctx)
	switch {
	case err == nil:
		h.conn.lastSent = sent
		h.finish()
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return h.rollBack(fmt.Errorf("the transaction had ended before its work was done: %w", err))
	case h.conn.b.Dialect.CommitRefused(err):
		return h.rollBack(fmt.Errorf("the server refused to commit, and nothing of the work is stored: %w", err))
	}
	h.conn.lose(err)
	return fmt.Errorf("no answer to the commit: the outcome is unknown, the work may be stored or not: %w", err)
}

// finish ends a hold whose transaction has ended. A waiter of this process may have removed it.
func (h *connHold) finish() {
	b := h.conn.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if other := b.byOwner[h.lock.Owner]; other == nil || other == h {
		b.committed.add(h.lock.Owner)
	}
	b.removeHold(h)
	b.keepIfUnused(h.conn)
}

// errBusy is returned for a hold whose connection is in use by the caller's work.
var errBusy = errors.New("its transaction is in use by the caller's work, which must end within the TTL")

// Renew sends one statement on each connection that has some of the holds.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	batches := map[*lockConn]*renewBatch{}
	closed := b.errIfClosed()
	for i, d := range holds {
		h := b.holdOf(d)
		invalid := d.ValidateRenewal()
		switch {
		case closed != nil:
			errs[i] = closed
		case invalid != nil:
			errs[i] = invalid
		case h == nil:
			errs[i] = driver.ErrLost
		case h.working.Load():
			errs[i] = b.wrapError("renew", d.Name, errBusy)
		default:
			t := batches[h.conn]
			if t == nil {
				t = &renewBatch{}
				batches[h.conn] = t
			}
			t.indexes, t.holds = append(t.indexes, i), append(t.holds, h)
			t.undo = append(t.undo, b.promise(h, d.TTL))
		}
	}
	var wg wait.Group
	for c, t := range batches {
		wg.Go(func() { t.renew(ctx, c, errs) })
	}
	wg.Wait()
	return errs
}

// renewBatch has the holds that are renewed on one connection.
type renewBatch struct {
	indexes []int // of the holds in the call
	holds   []*connHold
	undo    []func() // of promises
}

func (t *renewBatch) renew(ctx context.Context, c *lockConn, errs []error) {
	err := ctx.Err()
	if err == nil {
		err = c.b.detach(ctx, func(own context.Context) error { return c.extend(own) }, func() {})
	}
	if err != nil {
		for _, undo := range t.undo {
			undo()
		}
	}
	for n, i := range t.indexes {
		h := t.holds[n]
		switch {
		case errors.Is(err, driver.ErrClosed):
			errs[i] = err
		case !c.b.isCurrent(h):
			errs[i] = driver.ErrLost
		default:
			errs[i] = c.b.wrapError("renew", h.lock.Name, err)
		}
	}
}
