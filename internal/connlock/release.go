package connlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Release gives a lock back. One that ended with its Commit is released already. That of
// another process ends with its link, and with it all else that this link has: nobody else
// can give it back.
func (b *Backend) Release(ctx context.Context, d driver.Hold) error {
	if err := b.validate(d); err != nil {
		return err
	}
	if h := b.holdOf(d); h != nil {
		h.revoke()
	}
	err := b.withKey(ctx, b.Dialect.Key(d.Name), func(own context.Context) error { return b.release(own, d) })
	return b.wrapError("release", d.Name, err)
}

func (b *Backend) release(ctx context.Context, d driver.Hold) error {
	h := b.holdOf(d)
	switch {
	case h != nil:
		return b.drop(ctx, h)
	case b.takeCommitted(d.Owner):
		return nil
	}
	err := b.killOrphanOf(ctx, d.Owner)
	switch {
	case b.wasLost(d.Owner):
		return driver.ErrLost // whatever the server says: an answer that is missing now would pass for that of a release
	case err != nil:
		return err
	}
	was, err := b.Dialect.KillHolder(ctx, Lock{Name: d.Name, Key: b.Dialect.Key(d.Name), Owner: d.Owner})
	if err == nil && !was {
		err = driver.ErrLost
	}
	return err
}

// drop gives back what a link has. A link that ends before it has answered may have lost the lock
// long before, to somebody who has it: that is a loss, and no release of unknown outcome.
func (b *Backend) drop(ctx context.Context, h *connHold) error {
	var dropped bool
	var gone error
	err := h.conn.do(ctx, func(own context.Context) error {
		h.setOnLost(nil) // who releases needs no news, and who waits may have the lock before this ends
		err := h.conn.conn.Unlock(own, h.lock)
		if err != nil {
			h.conn.undo(h.lock, err)
		}
		if errors.Is(err, driver.ErrLost) {
			gone = err
		}
		dropped = err == nil || !h.conn.isDead()
		return nil
	})
	switch {
	case dropped:
		b.endHold(h)
		return gone
	case b.life.Err() != nil:
		return driver.ErrClosed
	case !b.isCurrent(h):
		return fmt.Errorf("%w: %w before the release was answered", driver.ErrLost, errGone)
	}
	return err
}

// revoke says that a Commit under way comes too late.
func (h *connHold) revoke() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revoked = h.working
}

// historyTime is how long it is remembered how a hold ended that was not released.
const historyTime = 10 * time.Minute

// noteCommitted notes that an owner's hold has ended with a commit. b.mu is held.
func (b *Backend) noteCommitted(owner string) {
	for o, since := range b.committed {
		if time.Since(since) > historyTime {
			delete(b.committed, o)
		}
	}
	b.committed[owner] = time.Now()
}

// takeCommitted reports whether that is so, once.
func (b *Backend) takeCommitted(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.committed[owner]
	delete(b.committed, owner)
	return is
}

// noteLost notes that owners' holds were lost. b.mu is held.
func (b *Backend) noteLost(gone []*connHold) {
	for o, since := range b.lost {
		if time.Since(since) > historyTime {
			delete(b.lost, o)
		}
	}
	for _, h := range gone {
		b.lost[h.lock.Owner] = time.Now()
	}
}

func (b *Backend) wasLost(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.lost[owner]
	return is
}
