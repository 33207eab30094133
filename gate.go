package distlock

import (
	"errors"
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
	case errors.Is(g.refusal, ErrHeld) && (g.line.head != nil || g.contender):
		return g.refusal
	case g.line.head != nil:
		return &HeldError{}
	}
	return nil
}

// heldHere is the refusal by a hold of this process. sh.mu is held.
func (g *gate) heldHere() error {
	h := g.held
	holder := Holder{Owner: h.owner, Mode: h.mode, Held: g.c.now() - h.since, Left: h.life.Trust() - g.c.now(), Meta: h.s.meta}
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
	if h.row.count >= h.s.handoffMax || now-h.row.since >= h.s.handoffWindow || h.queued {
		return false
	}
	if h.turning || h.wanted || h.asks() != h.s.terms.TTL || !g.c.watchdog.HandOn(&h.life, now) {
		return false
	}
	if h.next > h.last || h.lineUnknown(now) {
		// Who asks for the lock during a re-fence would ask nobody.
		return h.s.revoked == nil && g.handOnForRefence(h)
	}
	h.row.count++
	g.line.pop()
	w.ch <- delivery{lease: h.newLease(w.ctx, now)}
	return true
}

// handOnForRefence makes the next in line the contender, with the Owner that still
// holds: its attempt brings a greater fence for one round trip. sh.mu is held.
func (g *gate) handOnForRefence(h *hold) bool {
	if !g.c.watchdog.RemoveIdle(&h.life) {
		return false
	}
	h.ended = true
	g.held = nil
	g.contender = true
	g.c.tasks.Begin()
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
		g.c.tasks.Begin()
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
		return 4*rtt + min(2*g.c.opts.HandoffWindow, 10*time.Millisecond), true
	case now-p.probed < seldom:
		return 0, false
	}
	p.probed = now
	if _, pushed := g.c.backend.(driver.Watcher); pushed {
		return 2*rtt + 100*time.Microsecond, false
	}
	return min(2*g.c.caps.Poll, 2*time.Millisecond), false
}

// whyWaiting is the last answer as someone in line knows it. sh.mu is held.
func (g *gate) whyWaiting() error {
	if g.held != nil {
		return g.heldHere()
	}
	if g.refusal != nil {
		return g.refusal
	}
	return &HeldError{}
}
