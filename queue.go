package distlock

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// localQueue is the queue of one name in this process. One of the callers that want the lock, the
// contender, talks to the backend; the others wait in the queue. While the process holds an
// exclusive lock there is no contender: the lease is handed off to the next waiter, within bounds,
// or it is released and the next waiter becomes the contender.
//
// The next waiter receives a lease, or the role of the contender with everything that belongs to
// it: the Owner that the backend may know, the armed watch, and the last answer.
type localQueue struct {
	sh   *shard
	name string

	// Guarded by sh.mu.
	waiters   waiterList
	refusal   error // the contender's last answer, once it waits
	held      *hold // the exclusive hold of this process
	tries     int32 // attempts beside the queue
	contender bool  // there is one
	history   history
}

// shard is a part of the queues under one mutex.
type shard struct {
	env    *env
	mu     sync.Mutex
	queues map[string]*localQueue
	spare  []*waiter
	past   [16]history // of queues that were dropped, as far as there is room
	_      [64]byte    // shards in use at once do not share a cache line
}

// queues are the local queues of a client.
type queues struct {
	shards [64]shard
	seed   maphash.Seed
}

func (all *queues) init(e *env) {
	all.seed = maphash.MakeSeed()
	for i := range all.shards {
		all.shards[i].env = e
		all.shards[i].queues = map[string]*localQueue{}
	}
}

func (all *queues) shard(name string) *shard {
	return &all.shards[maphash.String(all.seed, name)%uint64(len(all.shards))]
}

// dismiss answers every waiter with ErrClosed. Contenders see env.done themselves.
func (all *queues) dismiss() {
	for i := range all.shards {
		s := &all.shards[i]
		s.mu.Lock()
		for _, q := range s.queues {
			for w := q.waiters.pop(); w != nil; w = q.waiters.pop() {
				w.ch <- delivery{err: ErrClosed}
			}
		}
		s.mu.Unlock()
	}
}

// queueOf finds or makes the queue of name, whose shard is sh. sh.mu is held.
func (all *queues) queueOf(sh *shard, name string) *localQueue {
	q := sh.queues[name]
	if q == nil {
		q = &localQueue{sh: sh, name: name}
		hash := maphash.String(all.seed, name)
		if q.history = *sh.historyOf(hash); q.history.hash != hash {
			q.history = history{hash: hash, refused: longAgo, probed: longAgo, released: longAgo}
		}
		sh.queues[name] = q
	}
	return q
}

func (sh *shard) historyOf(hash uint64) *history { return &sh.past[hash>>32%uint64(len(sh.past))] }

// busy returns why a single attempt would be refused: this process holds the lock, or a caller in it
// was refused before and waits. A reader may be let in beside what keeps out a writer of this process: only the backend
// knows. sh.mu is held.
func (q *localQueue) busy(mode Mode) error {
	switch {
	case q.held != nil:
		return q.heldHere()
	case mode == Read:
		return nil
	case errors.Is(q.refusal, ErrHeld) && (q.waiters.head != nil || q.contender):
		return q.refusal
	case q.waiters.head != nil:
		return &HeldError{}
	}
	return nil
}

// heldHere returns the refusal by a hold of this process. sh.mu is held.
func (q *localQueue) heldHere() error {
	h := q.held
	holder := Holder{Owner: h.owner, Mode: h.mode, Held: q.sh.env.now() - h.since, Left: h.life.Trust() - q.sh.env.now(), Meta: h.s.meta}
	if h.lease != nil {
		holder.Fence = h.lease.Fence()
	}
	return &HeldError{Holders: []Holder{holder}}
}

// handOff gives the hold to the next waiter if the bounds allow it: as a lease under the next
// reserved fence, or as the role of the contender, which has it re-fenced. sh.mu is held.
func (q *localQueue) handOff(h *hold) bool {
	if q == nil || q.waiters.head == nil {
		return false
	}
	w, now := q.waiters.head, q.sh.env.now()
	if q.contender || q.held != h || !w.s.canTakeOver(h.s) {
		return false
	}
	if h.handoffs.count == 0 {
		h.handoffs.since = h.since
	}
	if h.handoffs.count >= h.env.opts.HandoffMax || now-h.handoffs.since >= h.env.opts.HandoffWindow {
		return false
	}
	if h.state == downgrading || h.revoked || h.requestedTTL() != h.s.terms.TTL || !q.sh.env.watchdog.HandOff(&h.life, now) {
		return false
	}
	if h.next > h.last {
		// A revocation that arrives during a re-fence would find no hold.
		return h.s.revoked == nil && q.handOffForRefence(h)
	}
	h.handoffs.count++
	q.waiters.pop()
	w.ch <- delivery{lease: h.newLease(w.ctx, now)}
	return true
}

// handOffForRefence makes the next waiter the contender, with the Owner that still holds. Its
// attempt brings a greater fence for one round trip. sh.mu is held.
func (q *localQueue) handOffForRefence(h *hold) bool {
	if !q.sh.env.watchdog.RemoveIdle(&h.life) {
		return false
	}
	h.become(ended, ErrReleased)
	q.held = nil
	q.contender = true
	q.sh.env.tasks.Begin()
	series := handoffs{h.handoffs.since, h.handoffs.count + 1}
	q.waiters.pop().ch <- delivery{role: role{owner: h.owner, unknown: true, handoffs: series, last: &HeldError{}}}
	return true
}

// giveBack lets the next waiter of this process become the contender: h has ended.
func (q *localQueue) giveBack(h *hold) {
	if q == nil {
		return
	}
	q.sh.mu.Lock()
	defer q.sh.mu.Unlock()
	if q.held == h {
		q.held = nil
		q.history.released = q.sh.env.now()
		if h.revoked {
			q.history.refused = q.history.released
		}
	}
	q.promote()
}

// promote makes the next waiter the contender if there is none and the process does not hold the
// lock. It drops a queue that is not needed any more. sh.mu is held.
func (q *localQueue) promote() {
	if q.contender || q.held != nil {
		return
	}
	if q.waiters.head != nil {
		w := q.waiters.pop()
		q.contender = true
		r := role{last: q.refusal, firstStep: q.history.firstStep(q.sh.env, w.s.mode, q.sh.env.now())}
		q.sh.env.tasks.Begin()
		w.ch <- delivery{role: r}
		return
	}
	if q.tries == 0 && q.sh.queues[q.name] == q {
		delete(q.sh.queues, q.name)
		*q.sh.historyOf(q.history.hash) = q.history
	}
}

// whyWaiting returns the last answer, as a waiter in the queue knows it. sh.mu is held.
func (q *localQueue) whyWaiting() error {
	if q.held != nil {
		return q.heldHere()
	}
	if q.refusal != nil {
		return q.refusal
	}
	return &HeldError{}
}

// delivery is sent to a waiter: a lease, the role of the contender, or an error.
type delivery struct {
	lease *Lease
	role  role
	err   error
}

// role is passed on from one contender to the next.
type role struct {
	owner     string        // an Owner to try with; empty: a fresh one
	watch     *driver.Watch // armed for owner, or nil
	revoke    *revocation   // a revocation of owner's hold; nil if it is not Revocable
	handoffs  handoffs      // of owner's hold
	last      error         // the last answer
	firstStep firstStep     // before the first attempt
	unknown   bool          // the backend may know owner: it must be granted or released
}

// waiter is a place in the queue.
type waiter struct {
	s          *spec
	ctx        context.Context // of its Lock
	ch         chan delivery   // of one: the sender never blocks
	prev, next *waiter
	queued     bool
}

// waiterList is a FIFO that a waiter can leave at any time.
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

// waiter takes a spare waiter or makes one. Spare waiters are kept here and not in a sync.Pool,
// since channels may not cross synctest bubbles. sh.mu is held.
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

// lately is how long another process that was seen is thought to be there; seldom is the pause between looks for one.
const lately, seldom = time.Second, 20 * time.Millisecond

// history records what other processes did with a lock. It is kept for a name, even
// while no caller needs its queue.
type history struct {
	hash     uint64        // of the name
	refused  instant       // when another process was last seen to hold
	probed   instant       // when a contender last paused without a reason, or began a series of turns
	released instant       // when the lock was last given back to the backend
	rtt      time.Duration // of the last grant
	fence    uint64        // the last one of that
	waited   bool          // the last grant came after a wait
}

// firstStep is the first step of a contender, before its first attempt.
type firstStep struct {
	arm   bool          // arm the watch, since the attempt is likely to be refused: that saves another one
	pause time.Duration // let others go first
}

// firstStep returns how the next contender begins. Where waiters have no queue at the backend, a process
// that has just released pauses, or else it would win nearly every race: its attempt follows its
// release while others are still being notified. If another process was seen lately, the pause is long
// enough to be notified of that process's release. Otherwise it is, now and then, just long enough to
// find out whether there is another process. The mutex of the lock's shard is held.
func (past *history) firstStep(e *env, mode Mode, now instant) firstStep {
	contended := now-past.refused < lately
	switch {
	case e.caps.QueueingOf(mode) != driver.QueueNever:
		return firstStep{arm: contended}
	case e.polls.Load():
		return past.stepBack(e.poll(), contended, now)
	case now-past.released >= time.Millisecond:
		return firstStep{}
	case contended:
		return firstStep{arm: true, pause: 4*past.roundTrip() + min(2*e.opts.HandoffWindow, 10*time.Millisecond)}
	case now-past.probed < seldom:
		return firstStep{}
	}
	past.probed = now
	return firstStep{pause: 2*past.roundTrip() + 100*time.Microsecond}
}

// stepBack is firstStep where waiters have no signal either. Now and then, and after a short series of turns if another process was
// seen lately, the lock is left free until a waiter has looked for it (contender.pollPause).
func (past *history) stepBack(poll time.Duration, contended bool, now instant) firstStep {
	rest, free := max(poll/4, min(poll, seldom)), now-past.released
	series := 8 * rest
	if contended {
		series = rest / 3
	}
	switch {
	case free >= rest:
		past.probed = now
		return firstStep{}
	case now-past.probed < series:
		return firstStep{}
	}
	past.probed = now + rest - free
	return firstStep{pause: rest - free}
}

// seeTurn notes a grant, for which the contender has waited or not. Where fences are counted, a gap before its own shows that another
// process was there, though it has never refused this one.
func (past *history) seeTurn(h *hold, waited bool, now instant) {
	if past.fence > 0 && h.lease.Fence() != past.fence+1 && h.env.caps.Floor {
		past.refused = now
	}
	if past.fence = h.last; waited {
		past.probed = now
	}
}

func (past *history) roundTrip() time.Duration { return min(past.rtt, 10*time.Millisecond) }
