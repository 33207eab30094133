package memlock

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/wait"
)

// maxFence keeps fences in a signed 64-bit number, with room for the last span.
const maxFence = math.MaxInt64 - claims.Span

// watcher is one request that waits for a signal.
type watcher struct {
	closed  *atomic.Bool // of its connection
	request driver.Request
	ready   wait.Signal
}

// lockEntry is the state of one name. Its shard's mutex guards it.
type lockEntry struct {
	claims.Lock // Number is the greatest fence ever granted
	watchers    []*watcher
}

func (l *lockEntry) idle() bool { return len(l.Claims)+len(l.watchers) == 0 }

func (l *lockEntry) acquire(r *driver.Request, now int64) (driver.Grant, error) {
	if l.Number >= maxFence {
		return driver.Grant{}, fmt.Errorf("%w: %s has used up its fences", driver.ErrInvalid, driver.Quote(r.Name))
	}
	l.Expire(now)
	hold := claims.Claim{Fence: l.Number + 1, Decoded: r.Meta, OnRevoke: r.OnRevoke}
	d := l.Acquire(r, hold, now)
	if d.Err != nil {
		return driver.Grant{}, d.Err
	}
	g := driver.Grant{Fence: uint64(hold.Fence), Fences: claims.Fences(*r), TTL: r.TTL}
	l.Number = int64(g.Last())
	if d.Frees {
		l.notifyAdmitted()
	}
	return g, nil
}

func (l *lockEntry) renew(h *driver.Hold, now int64) error {
	c := l.Hold(h.Owner)
	if c == nil {
		return lost(h.Name)
	}
	l.Number = max(l.Number, int64(h.Floor))
	c.Until = max(c.Until, now+int64(h.TTL))
	return nil
}

func (l *lockEntry) release(name, owner string) error {
	if !l.Remove(owner) {
		return lost(name)
	}
	l.notifyAdmitted()
	return nil
}

// notifyAdmitted signals the watchers whose request would be granted now.
func (l *lockEntry) notifyAdmitted() {
	for _, w := range l.watchers {
		if l.Admits(&w.request) {
			w.ready.Notify()
		}
	}
}

// revoke returns the OnRevoke function of h.Owner, which does nothing the second time.
func (l *lockEntry) revoke(h driver.Hold) (func(), error) {
	c := l.Hold(h.Owner)
	switch {
	case c == nil:
		return nil, lost(h.Name)
	case c.OnRevoke == nil:
		return nil, fmt.Errorf("memlock: %w: the holder of %s does not accept revocation", driver.ErrUnsupported, driver.Quote(h.Name))
	}
	onRevoke := c.OnRevoke
	c.OnRevoke = func() {}
	return onRevoke, nil
}

func lost(name string) error {
	return fmt.Errorf("memlock: %s: %w", driver.Quote(name), driver.ErrLost)
}
