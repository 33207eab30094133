package distlock

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// A gate stands before each name that is in use in this process. Of all who want
// the lock one, the contender, talks to the backend; the others wait in line. While
// an exclusive lock is held in this process nobody contends: the lease is handed
// on to the next in line, within bounds, or released and the next one contends.
//
// What travels to the next in line is a lease, or the role of the contender with
// all that belongs to it: the Owner that the backend may know, the armed watch, and
// the last answer.
type gate struct {
	c    *Client
	sh   *shard
	name string

	// Guarded by sh.mu.
	line      line
	contender bool  // somebody has the role
	refusal   error // the contender's last answer, once it waits
	held      *hold // the exclusive hold of this process
	tries     int   // attempts beside the line
	past      past
}

// past is what a gate remembers, also when nobody needs it for a moment.
type past struct {
	hash     uint64        // of the name
	foreign  instant       // when somebody elsewhere was last seen holding
	probed   instant       // when the gate last yielded just to see
	released instant       // when the lock was last given back to the backend
	rtt      time.Duration // of the last grant
}

// shard is a part of the gates under one mutex.
type shard struct {
	mu    sync.Mutex
	gates map[string]*gate
	spare []*waiter
	past  [16]past // of gates that are gone, as far as there is room
	_     [64]byte // shards in use at once do not share a cache line
}

func (c *Client) shard(name string) *shard {
	return &c.shards[maphash.String(c.seed, name)%uint64(len(c.shards))]
}

// gate finds or makes the gate of name. sh.mu is held.
func (sh *shard) gate(c *Client, name string) *gate {
	g := sh.gates[name]
	if g == nil {
		g = &gate{c: c, sh: sh, name: name}
		hash := maphash.String(c.seed, name)
		if g.past = *sh.pastOf(hash); g.past.hash != hash {
			g.past = past{hash: hash, foreign: longAgo, probed: longAgo, released: longAgo}
		}
		sh.gates[name] = g
	}
	return g
}

func (sh *shard) pastOf(hash uint64) *past { return &sh.past[hash>>32%uint64(len(sh.past))] }

// busy says why a single attempt would be refused: the lock is held here, or
// someone here was refused before and waits. sh.mu is held.
func (g *gate) busy() error {
	switch {
	case g.held != nil:
		return g.heldHere()
	case g.line.head != nil || g.contender && g.refusal != nil:
		if g.refusal != nil {
			return g.refusal
		}
		return &HeldError{}
	}
	return nil
}

// heldHere is the refusal by a hold of this process. sh.mu is held.
func (g *gate) heldHere() error {
	h := g.held
	holder := Holder{Owner: h.owner, Mode: h.mode, Held: g.c.now() - h.since, Left: h.trust() - g.c.now(), Meta: h.s.meta}
	if h.lease != nil {
		holder.Fence = h.lease.Fence()
	}
	return &HeldError{Holders: []Holder{holder}}
}

// handOn gives the hold to the next in line if the bounds allow it: as a lease
// under the next reserved fence, or as the role to have it re-fenced. sh.mu is held.
func (g *gate) handOn(h *hold, now instant) bool {
	w := g.line.head
	if w == nil || g.contender || g.held != h || !w.s.heirTo(h.s) {
		return false
	}
	if h.row.count >= h.s.handoffMax || now-h.row.since >= h.s.handoffWindow || h.queued || h.trust()-now < h.s.ttl/4 {
		return false
	}
	if h.next > h.last {
		return g.handOnForRefence(h)
	}
	h.row.count++
	g.line.pop()
	w.ch <- delivery{lease: h.newLease(now)}
	return true
}

// handOnForRefence makes the next in line the contender, with the Owner that still
// holds: its attempt brings a greater fence for one round trip. sh.mu is held.
func (g *gate) handOnForRefence(h *hold) bool {
	if !g.c.watchdog.removeIdle(h) {
		return false
	}
	h.ended = true
	g.held = nil
	g.contender = true
	row := row{h.row.since, h.row.count + 1}
	g.line.pop().ch <- delivery{role: role{owner: h.owner, unsure: true, row: row, last: &HeldError{}}}
	return true
}

// promote makes the next in line the contender, if there is none and nothing is
// held here, and drops the gate if nobody needs it. sh.mu is held.
func (g *gate) promote() {
	if g.contender || g.held != nil {
		return
	}
	if w := g.line.pop(); w != nil {
		g.contender = true
		r := role{last: g.refusal}
		r.yield, r.listen = g.yield(g.c.now())
		w.ch <- delivery{role: r}
		return
	}
	if g.tries == 0 && g.sh.gates[g.name] == g {
		delete(g.sh.gates, g.name)
		*g.sh.pastOf(g.past.hash) = g.past
	}
}

// yield is how long a contender lets others go first that comes back right after
// this process gave the lock back: long enough to hear another's release if someone
// elsewhere was seen lately; else, now and then, just long enough to see whether
// there is someone. Without it the process that released would win nearly every
// race, since its attempt follows its release while others still hear of it.
// sh.mu is held.
func (g *gate) yield(now instant) (d time.Duration, listen bool) {
	const lately, seldom = time.Second, 20 * time.Millisecond
	p := &g.past
	rtt := min(p.rtt, 10*time.Millisecond)
	switch {
	case now-p.released >= time.Millisecond:
		return 0, false
	case now-p.foreign < lately:
		return 4*rtt + 2*g.c.opts.HandoffWindow, true
	case now-p.probed < seldom:
		return 0, false
	}
	p.probed = now
	if _, pushed := g.c.backend.(driver.Waiter); pushed {
		return 2*rtt + 100*time.Microsecond, false
	}
	return 2 * g.c.caps.Poll, false
}

// delivery is what a waiter in line gets: a lease, the contender's role, or an error.
type delivery struct {
	lease *Lease
	role  role
	err   error
}

// role is what travels from one contender to the next.
type role struct {
	owner  string        // an Owner to ask with; empty: a fresh one
	unsure bool          // the backend may know owner: it must be granted or released
	watch  *driver.Watch // armed for owner, or nil
	row    row           // of the hand-offs that owner's hold went through
	last   error         // the last answer
	yield  time.Duration // let others go first
	listen bool          // … until one of them is heard
}

// waiter is a place in the line inside the process.
type waiter struct {
	s          *spec
	ch         chan delivery // of one: the sender never blocks
	prev, next *waiter
	queued     bool
}

// line is a FIFO from which anyone can leave.
type line struct{ head, tail *waiter }

func (l *line) push(w *waiter) {
	w.queued = true
	w.prev = l.tail
	if l.tail != nil {
		l.tail.next = w
	} else {
		l.head = w
	}
	l.tail = w
}

func (l *line) pop() *waiter {
	w := l.head
	if w != nil {
		l.remove(w)
	}
	return w
}

func (l *line) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.tail = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
}

// waiter takes a spare waiter or makes one. sh.mu is held. Waiters are kept here
// and not in a sync.Pool, since channels may not cross synctest bubbles.
func (sh *shard) waiter(s *spec) *waiter {
	if n := len(sh.spare); n > 0 {
		w := sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
		w.s = s
		return w
	}
	return &waiter{s: s, ch: make(chan delivery, 1)}
}

// recycle keeps a waiter whose channel is empty. sh.mu is held.
func (sh *shard) recycle(w *waiter) {
	w.s = nil
	if len(sh.spare) < 64 {
		sh.spare = append(sh.spare, w)
	}
}
