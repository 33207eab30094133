package connlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Commit runs work in a transaction on the connection that has an owner's lock, and commits it: the work is stored if and
// only if the lock was held to the end. With Config.InTx the lock ends then, also without the work. It returns ErrLost
// without beginning the work if the owner does not hold the lock. If the server does not answer the commit, the error says
// that the outcome is unknown, and the hold is lost.
func (b *Backend) Commit(ctx context.Context, owner string, work func(tx *sql.Tx) error) error {
	own, end := b.bounded(ctx)
	defer end()
	leave, err := b.owners.Lock(own, owner)
	if err != nil {
		return b.wrapError("commit for", owner, err)
	}
	defer leave()
	c, name := b.holdOf(owner), ""
	if c == nil {
		err = fmt.Errorf("commit: %w: the owner does not hold", driver.ErrLost)
	} else {
		name, err = c.lock.Name, c.commit(own, work)
	}
	return b.wrapError("commit", name, err)
}

func (c *lockConn) commit(ctx context.Context, work func(tx *sql.Tx) error) error {
	j, ok := c.Conn.(Joiner)
	if !ok {
		return driver.ErrUnsupported
	}
	c.working.Store(true)
	defer c.working.Store(false)
	c.spent.Store(true)
	var tx *sql.Tx
	err := c.do(c.b.ctx, 0, func(own context.Context) (err error) {
		tx, err = j.Begin(own)
		return err
	})
	if err != nil {
		return c.lostBy(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	panicked := true
	defer func() {
		if panicked {
			c.rollBack(j, nil)
		}
	}()
	err = work(tx)
	panicked = false
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return c.rollBack(j, err)
	}
	sent := time.Now()
	err = j.Commit(ctx)
	switch {
	case err == nil:
		c.finish(sent)
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return c.rollBack(j, fmt.Errorf("the transaction had ended before its work was done: %w", err))
	case c.b.Dialect.CommitRefused(err):
		return c.rollBack(j, fmt.Errorf("the server refused to commit, and nothing of the work is stored: %w", err))
	}
	c.lose()
	return fmt.Errorf("no answer to the commit: the outcome is unknown, the work may be stored or not: %w", err)
}

// rollBack ends the transaction without its work.
func (c *lockConn) rollBack(j Joiner, cause error) error {
	ctx, cancel := context.WithTimeout(c.b.ctx, cleanupTime)
	defer cancel()
	sent := time.Now()
	if err := j.Rollback(ctx); err != nil {
		return c.lostBy(fmt.Errorf("its connection was lost, and nothing of the work is stored: %w", cmp.Or(cause, err)))
	}
	c.finish(sent)
	return cause
}

// finish notes that the transaction has ended, and the lock with it if it was the transaction's.
func (c *lockConn) finish(sent time.Time) {
	c.lastSent = sent
	if !c.b.InTx || !c.exit() {
		return
	}
	owner := c.lock.Owner
	c.b.mu.Lock()
	c.b.over[owner] = true
	c.b.mu.Unlock()
	time.AfterFunc(historyTime, func() { c.b.committed(owner) })
	c.leave()
}
