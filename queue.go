package distlock

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// A localQueue stands before each name that is in use in this process. Of all who want
// the lock one, the contender, talks to the backend; the others wait in line. While
// an exclusive lock is held in this process nobody contends: the lease is handed
// on to the next in line, within bounds, or released and the next one contends.
//
// What travels to the next in line is a lease, or the role of the contender with
// all that belongs to it: the Owner that the backend may know, the armed watch, and
// the last answer.
type localQueue struct {
	env  *env
	sh   *shard
	name string

	// Guarded by sh.mu.
	waiters   waiterList
	contender bool  // somebody has the role
	refusal   error // the contender's last answer, once it waits
	held      *hold // the exclusive hold of this process
	tries     int   // attempts beside the line
	history   history
}

// history is what a gate remembers, also when nobody needs it for a moment.
type history struct {
	hash     uint64        // of the name
	foreign  instant       // when somebody elsewhere was last seen holding
	probed   instant       // when the gate last yielded just to see
	released instant       // when the lock was last given back to the backend
	rtt      time.Duration // of the last grant
}

// shard is a part of the gates under one mutex.
type shard struct {
	mu     sync.Mutex
	queues map[string]*localQueue
	spare  []*waiter
	past   [16]history // of gates that are gone, as far as there is room
	_      [64]byte    // shards in use at once do not share a cache line
}

// queues are the gates of a client.
type queues struct {
	env    *env
	shards [64]shard
	seed   maphash.Seed
}

func (q *queues) init(e *env) {
	q.env, q.seed = e, maphash.MakeSeed()
	for i := range q.shards {
		q.shards[i].queues = map[string]*localQueue{}
	}
}

func (q *queues) shard(name string) *shard {
	return &q.shards[maphash.String(q.seed, name)%uint64(len(q.shards))]
}

// dismiss answers every waiter with ErrClosed. Contenders see env.done themselves.
func (q *queues) dismiss() {
	for i := range q.shards {
		s := &q.shards[i]
		s.mu.Lock()
		for _, g := range s.queues {
			for w := g.waiters.pop(); w != nil; w = g.waiters.pop() {
				w.ch <- delivery{err: ErrClosed}
			}
		}
		s.mu.Unlock()
	}
}

// queueOf finds or makes the gate of name, whose shard is sh. sh.mu is held.
func (q *queues) queueOf(sh *shard, name string) *localQueue {
	g := sh.queues[name]
	if g == nil {
		g = &localQueue{env: q.env, sh: sh, name: name}
		hash := maphash.String(q.seed, name)
		if g.history = *sh.historyOf(hash); g.history.hash != hash {
			g.history = history{hash: hash, foreign: longAgo, probed: longAgo, released: longAgo}
		}
		sh.queues[name] = g
	}
	return g
}

func (sh *shard) historyOf(hash uint64) *history { return &sh.past[hash>>32%uint64(len(sh.past))] }

// busy says why a single attempt would be refused: the lock is held here, or
// someone here was refused before and waits. sh.mu is held.
func (g *localQueue) busy() error {
	switch {
	case g.held != nil:
		return g.heldHere()
	case errors.Is(g.refusal, ErrHeld) && (g.waiters.head != nil || g.contender):
		return g.refusal
	case g.waiters.head != nil:
		return &HeldError{}
	}
	return nil
}

// heldHere is the refusal by a hold of this process. sh.mu is held.
func (g *localQueue) heldHere() error {
	h := g.held
	holder := Holder{Owner: h.owner, Mode: h.mode, Held: g.env.now() - h.since, Left: h.life.Trust() - g.env.now(), Meta: h.s.meta}
	if h.lease != nil {
		holder.Fence = h.lease.Fence()
	}
	return &HeldError{Holders: []Holder{holder}}
}

// handOff gives the hold to the next in line if the bounds allow it: as a lease
// under the next reserved fence, or as the role to have it re-fenced. sh.mu is held.
func (g *localQueue) handOff(h *hold, now instant) bool {
	w := g.waiters.head
	if w == nil || g.contender || g.held != h || !w.s.canTakeOver(h.s) {
		return false
	}
	if h.streak.count >= h.s.handoffMax || now-h.streak.since >= h.s.handoffWindow || h.queued {
		return false
	}
	if h.downgrading || h.revoked || h.requestedTTL() != h.s.terms.TTL || !g.env.watchdog.HandOn(&h.life, now) {
		return false
	}
	if h.next > h.last || h.queueUnknown(now) {
		// Who asks for the lock during a re-fence would ask nobody.
		return h.s.revoked == nil && g.handOffForRefence(h)
	}
	h.streak.count++
	g.waiters.pop()
	w.ch <- delivery{lease: h.newLease(w.ctx, now)}
	return true
}

// handOffForRefence makes the next in line the contender, with the Owner that still
// holds: its attempt brings a greater fence for one round trip. sh.mu is held.
func (g *localQueue) handOffForRefence(h *hold) bool {
	if !g.env.watchdog.RemoveIdle(&h.life) {
		return false
	}
	h.ended = true
	g.held = nil
	g.contender = true
	g.env.tasks.Begin()
	row := handoffStreak{h.streak.since, h.streak.count + 1}
	g.waiters.pop().ch <- delivery{role: role{owner: h.owner, unknown: true, streak: row, last: &HeldError{}}}
	return true
}

// promote makes the next in line the contender, if there is none and nothing is
// held here, and drops the gate if nobody needs it. sh.mu is held.
func (g *localQueue) promote() {
	if g.contender || g.held != nil {
		return
	}
	if w := g.waiters.pop(); w != nil {
		g.contender = true
		r := role{last: g.refusal}
		r.yield, r.listen = g.yield(g.env.now())
		g.env.tasks.Begin()
		w.ch <- delivery{role: r}
		return
	}
	if g.tries == 0 && g.sh.queues[g.name] == g {
		delete(g.sh.queues, g.name)
		*g.sh.historyOf(g.history.hash) = g.history
	}
}

// yield is how long a contender lets others go first that comes back right after
// this process gave the lock back: long enough to hear another's release if someone
// elsewhere was seen lately; else, now and then, just long enough to see whether
// there is someone. Without it the process that released would win nearly every
// race, since its attempt follows its release while others still hear of it.
// sh.mu is held.
func (g *localQueue) yield(now instant) (d time.Duration, listen bool) {
	const lately, seldom = time.Second, 20 * time.Millisecond
	p := &g.history
	rtt := min(p.rtt, 10*time.Millisecond)
	switch {
	case now-p.released >= time.Millisecond:
		return 0, false
	case now-p.foreign < lately:
		return 4*rtt + min(2*g.env.opts.HandoffWindow, 10*time.Millisecond), true
	case now-p.probed < seldom:
		return 0, false
	}
	p.probed = now
	if _, pushed := g.env.backend.(driver.Watcher); pushed {
		return 2*rtt + 100*time.Microsecond, false
	}
	return min(2*g.env.caps.Poll, 2*time.Millisecond), false
}

// whyWaiting is the last answer as someone in line knows it. sh.mu is held.
func (g *localQueue) whyWaiting() error {
	if g.held != nil {
		return g.heldHere()
	}
	if g.refusal != nil {
		return g.refusal
	}
	return &HeldError{}
}

// delivery is what a waiter in line gets: a lease, the contender's role, or an error.
type delivery struct {
	lease *Lease
	role  role
	err   error
}

// role is what travels from one contender to the next.
type role struct {
	owner   string        // an Owner to ask with; empty: a fresh one
	watch   *driver.Watch // armed for owner, or nil
	revoke  *holdSignal   // that somebody asks for owner's lock; nil if it is not Revocable
	streak  handoffStreak // of the hand-offs that owner's hold went through
	last    error         // the last answer
	yield   time.Duration // let others go first
	listen  bool          // … until one of them is heard
	unknown bool          // the backend may know owner: it must be granted or released
}

// waiter is a place in the line inside the process.
type waiter struct {
	s          *spec
	ctx        context.Context // of its Lock
	ch         chan delivery   // of one: the sender never blocks
	prev, next *waiter
	queued     bool
}

// waiterList is a FIFO from which anyone can leave.
type waiterList struct{ head, tail *waiter }

func (l *waiterList) push(w *waiter) {
	w.queued = true
	w.prev = l.tail
	if l.tail != nil {
		l.tail.next = w
	} else {
		l.head = w
	}
	l.tail = w
}

func (l *waiterList) pop() *waiter {
	w := l.head
	if w != nil {
		l.remove(w)
	}
	return w
}

func (l *waiterList) remove(w *waiter) {
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
func (sh *shard) waiter(ctx context.Context, s *spec) *waiter {
	if n := len(sh.spare); n > 0 {
		w := sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
		w.s, w.ctx = s, ctx
		return w
	}
	return &waiter{s: s, ctx: ctx, ch: make(chan delivery, 1)}
}

// recycle keeps a waiter whose channel is empty. sh.mu is held.
func (sh *shard) recycle(w *waiter) {
	w.s, w.ctx = nil, nil
	if len(sh.spare) < 64 {
		sh.spare = append(sh.spare, w)
	}
}
