package pinned

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
)

// Release gives a lock back. One that ended with its Commit is released already. That of
// another process ends with its link, and with it all else that this link has: nobody else
// can give it back.
func (b *Backend) Release(ctx context.Context, d driver.Hold) error {
	if err := b.check(d); err != nil {
		return err
	}
	if h := b.holdOf(d); h != nil {
		h.revoke()
	}
	err := b.detached(ctx, b.Dialect.Key(d.Name), func(own context.Context) error { return b.release(own, d) })
	return b.fail("release", d.Name, err)
}

func (b *Backend) release(ctx context.Context, d driver.Hold) error {
	h := b.holdOf(d)
	if h == nil {
		if b.wasOver(d.Owner) {
			return nil
		}
		if err := b.exorcise(ctx, d.Owner); err != nil {
			return err
		}
		was, err := b.Dialect.Evict(ctx, Lock{Name: d.Name, Key: b.Dialect.Key(d.Name), Owner: d.Owner})
		if err == nil && !was {
			err = driver.ErrLost
		}
		return err
	}
	dropped := false
	err := h.s.do(ctx, func(own context.Context) error {
		h.listen(nil) // who releases needs no news, and who waits may have the lock before this ends
		err := h.s.link.Drop(own, h.lock)
		if err != nil {
			h.s.undo(h.lock, err)
		}
		dropped = err == nil || !h.s.isDead()
		return nil
	})
	switch {
	case dropped:
		b.end(h)
		return nil
	case h.s.isDead():
		return errGone // the next Release tells when it has nothing any more
	}
	return err
}

// revoke says that a Commit under way comes too late.
func (h *hold) revoke() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revoked = h.working
}

// overTime is how long it is remembered that a hold ended with its commit.
const overTime = 10 * time.Minute

// committed notes that an owner's hold has ended with a commit. b.mu is held.
func (b *Backend) committed(owner string) {
	for o, since := range b.over {
		if time.Since(since) > overTime {
			delete(b.over, o)
		}
	}
	b.over[owner] = time.Now()
}

// wasOver reports whether that is so, once.
func (b *Backend) wasOver(owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.over[owner]
	delete(b.over, owner)
	return is
}
