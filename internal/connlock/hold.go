package connlock

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// connHold is a lock that a link has for an owner.
type connHold struct {
	lock  Lock
	conn  *lockConn
	since time.Time

	mu      sync.Mutex
	onLost  func()
	lost    bool // and told
	working bool // Commit has the link
	revoked bool // it was released in the middle of that
}

// enterHold notes a hold. b.mu is held.
func (b *Backend) enterHold(s *lockConn, l Lock, onLost func()) *connHold {
	h := &connHold{lock: l, conn: s, since: time.Now(), onLost: onLost}
	s.holds[l.Owner] = h
	b.byOwner[l.Owner] = h
	b.byKey[l.Key] = h
	delete(b.committed, l.Owner)
	delete(b.lost, l.Owner)
	return h
}

// removeHold removes a hold. b.mu is held.
func (b *Backend) removeHold(h *connHold) {
	delete(h.conn.holds, h.lock.Owner)
	delete(b.byOwner, h.lock.Owner)
	delete(b.byKey, h.lock.Key)
}

// endHold removes a hold whose lock was given back.
func (b *Backend) endHold(h *connHold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byOwner[h.lock.Owner] == h {
		b.removeHold(h)
	}
	b.keepIfUnused(h.conn)
}

// holdOf is what an owner holds of a name, or nil.
func (b *Backend) holdOf(d driver.Hold) *connHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.byOwner[d.Owner]
	if h == nil || h.lock.Name != d.Name {
		return nil
	}
	return h
}

// holds reports whether h is a hold isCurrent.
func (b *Backend) isCurrent(h *connHold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byOwner[h.lock.Owner] == h
}

// notifyLost calls OnLost, once.
func (h *connHold) notifyLost() {
	h.mu.Lock()
	f := h.onLost
	if h.lost {
		f = nil
	}
	h.lost = true
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// setOnLost takes the OnLost of a later grant. It is called if the hold was lost in the meantime.
func (h *connHold) setOnLost(onLost func()) {
	h.mu.Lock()
	h.onLost = onLost
	lost := h.lost
	h.mu.Unlock()
	if lost && onLost != nil {
		onLost()
	}
}

func (h *connHold) holder() driver.Holder {
	return driver.Holder{Owner: h.lock.Owner, Mode: driver.Exclusive, Held: time.Since(h.since), Left: -1, Meta: h.lock.Meta}
}
