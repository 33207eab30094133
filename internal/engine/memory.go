package engine

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// memory is what a backend remembers, so that an uncontended pair is two changes.
type memory struct {
	address    string       // of the backend
	clock      func() int64 // the store's; nil: it is estimated
	mu         sync.Mutex
	now        int64            // the latest answer's clock
	asked      time.Time        // before the call that it answered
	last       int64            // the latest estimate
	young, old map[string]*lock // nothing changes them: others read them
	own        map[string]*own  // by owner
	swept      int              // entries of own that were left
}

// own is what is remembered of an owner of this backend.
type own struct {
	claim claims.Claim // its hold or place as the store has it; no Owner: not known
	limit int
	lost  int64     // the greatest stamp of a write without an answer
	until time.Time // it is of no use any more
}

// stale is how old the latest answer may be of which the store's clock is estimated.
const stale = 10 * time.Second

// told remembers the store's clock. It reports whether that has jumped ahead of what was expected of it.
func (m *memory) told(now int64, asked time.Time) (jumped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	jumped = !m.asked.IsZero() && now > m.bound()
	if now > 0 && (jumped || asked.After(m.asked)) {
		if m.now-now > time.Second.Microseconds() { // it is another's
			m.last = 0
		}
		m.now, m.asked = now, asked
	}
	return jumped
}

// upper returns the store's clock now, or later; 0 if it is not known.
func (m *memory) upper() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clock == nil && time.Since(m.asked) > stale {
		return 0
	}
	// Holds end in the order in which they were granted, also if a slow answer has put the estimate ahead.
	m.last = max(m.last, m.bound())
	return m.last
}

func (m *memory) bound() int64 {
	if m.clock != nil {
		return m.clock()
	}
	since := time.Since(m.asked)
	return m.now + (since + since/100).Microseconds() + 1
}

// generation is how many locks are remembered at least.
const generation = 4096

// recall returns a lock as this process has seen it last, to be read only; nil: it does not know.
func (m *memory) recall(name string) *lock {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := cmp.Or(m.young[name], m.old[name])
	if l == nil {
		return nil
	}
	if l.version == 0 && len(l.Claims) > 0 && time.Since(l.others) > believed[l.Claims[0].Mode] {
		return nil
	}
	return l
}

// remember keeps a lock, which is not to be changed any more; nil: it is not known any more.
func (m *memory) remember(name string, l *lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l == nil {
		delete(m.young, name)
		delete(m.old, name)
		return
	}
	if was := m.young[name]; was != nil && was.version > l.version {
		return
	}
	was := cmp.Or(m.young[name], m.old[name])
	if m.young == nil || len(m.young) >= generation {
		m.young, m.old = map[string]*lock{}, m.young
	}
	c := *l
	if c.fresh = false; was != nil {
		c.others = was.others
	}
	for i := range c.Claims {
		if !strings.HasPrefix(c.Claims[i].Address, m.address) {
			c.others = time.Now()
		}
	}
	m.young[name] = &c
}

// believed is for how long it is believed, of a lock of which nothing else is known, that others have places in it, or read it. A reader's
// line can be added whether they do or not.
var believed = map[driver.Mode]time.Duration{driver.Exclusive: lately, driver.Read: 10 * lately}

// aReader is a hold of others.
var aReader = claims.Claim{Mode: driver.Read, Fence: 1 << claims.SpanBits}

// beside remembers that others have places in a lock, or read it, of which nothing else is known.
func (m *memory) beside(name string, c claims.Claim) {
	c.Until = claims.Forever
	m.remember(name, &lock{Lock: claims.Lock{Claims: []claims.Claim{c}}})
}

// of returns what is remembered of an owner.
func (m *memory) of(owner string) own {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.own[owner]; o != nil {
		return *o
	}
	return own{}
}

// keep remembers an owner's claim in a lock; nil: it has none.
func (m *memory) keep(owner string, l *lock, c *claims.Claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c == nil {
		delete(m.own, owner)
		return
	}
	o := own{claim: *c, limit: l.Limit, until: time.Now().Add(2 * time.Duration(c.Until-l.now*micro))}
	m.put(owner, o)
}

// lost remembers a write without an answer.
func (m *memory) lost(owner string, stamp int64, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := own{lost: stamp}
	if was := m.own[owner]; was != nil {
		o.lost = max(was.lost, stamp)
	}
	o.until = time.Now().Add(2*ttl + time.Minute) // the core asks no longer
	m.put(owner, o)
}

func (m *memory) put(owner string, o own) {
	if m.own == nil {
		m.own = map[string]*own{}
	}
	m.own[owner] = &o
	if len(m.own) > 2*m.swept+generation {
		now := time.Now()
		maps.DeleteFunc(m.own, func(_ string, o *own) bool { return now.After(o.until) })
		m.swept = len(m.own)
	}
}

// renewed remembers a hold that was renewed, and the lock if nobody else has changed that.
func (m *memory) renewed(name string, version int64, out Outcome, o own) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.until = time.Now().Add(2 * time.Duration(o.claim.Until-out.Seen.Now*micro))
	m.put(o.claim.Owner, o)
	l := cmp.Or(m.young[name], m.old[name])
	if l == nil || l.version == 0 {
		return
	}
	next := l.clone()
	c := next.Claim(o.claim.Owner)
	delete(m.young, name)
	delete(m.old, name)
	if out.Other || c == nil || l.version != version {
		return
	}
	*c = o.claim
	next.version, next.Number, next.now = out.Seen.Version, out.Seen.Version, out.Seen.Now
	m.young[name] = next
}

// version returns the version of a lock as it was seen last; 0: it is not known.
func (m *memory) version(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := cmp.Or(m.young[name], m.old[name]); l != nil {
		return l.version
	}
	return 0
}
