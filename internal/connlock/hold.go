package connlock

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// hold is a lock that a link has for an owner.
type hold struct {
	lock  Lock
	s     *session
	since time.Time

	mu      sync.Mutex
	onLost  func()
	lost    bool // and told
	working bool // Commit has the link
	revoked bool // it was released in the middle of that
}

// enter notes a hold. b.mu is held.
func (b *Backend) enter(s *session, l Lock, onLost func()) *hold {
	h := &hold{lock: l, s: s, since: time.Now(), onLost: onLost}
	s.holds[l.Owner] = h
	b.holds[l.Owner] = h
	b.keys[l.Key] = h
	delete(b.over, l.Owner)
	delete(b.lost, l.Owner)
	return h
}

// forget removes a hold. b.mu is held.
func (b *Backend) forget(h *hold) {
	delete(h.s.holds, h.lock.Owner)
	delete(b.holds, h.lock.Owner)
	delete(b.keys, h.lock.Key)
}

// end removes a hold whose lock was given back.
func (b *Backend) end(h *hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[h.lock.Owner] == h {
		b.forget(h)
	}
	b.settle(h.s)
}

// holdOf is what an owner holds of a name, or nil.
func (b *Backend) holdOf(d driver.Hold) *hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.holds[d.Owner]
	if h == nil || h.lock.Name != d.Name {
		return nil
	}
	return h
}

// holds reports whether h is a hold still.
func (b *Backend) still(h *hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds[h.lock.Owner] == h
}

// tellLost calls OnLost, once.
func (h *hold) tellLost() {
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

// listen takes the OnLost of a later grant. It is called if the hold was lost in the meantime.
func (h *hold) listen(onLost func()) {
	h.mu.Lock()
	h.onLost = onLost
	lost := h.lost
	h.mu.Unlock()
	if lost && onLost != nil {
		onLost()
	}
}

func (h *hold) holder() driver.Holder {
	return driver.Holder{Owner: h.lock.Owner, Mode: driver.Exclusive, Held: time.Since(h.since), Left: -1, Meta: h.lock.Meta}
}
