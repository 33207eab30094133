package distlock

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
)

// delivery is what a waiter in line gets: a lease, the contender's role, or an error.
type delivery struct {
	lease *Lease
	role  role
	err   error
}

// role is what travels from one contender to the next.
type role struct {
	owner  string        // an Owner to ask with; empty: a fresh one
	watch  *driver.Watch // armed for owner, or nil
	wish   *news         // that somebody asks for owner's lock; nil if it is not Revocable
	row    row           // of the hand-offs that owner's hold went through
	last   error         // the last answer
	yield  time.Duration // let others go first
	listen bool          // … until one of them is heard
	unsure bool          // the backend may know owner: it must be granted or released
}

// waiter is a place in the line inside the process.
type waiter struct {
	s          *spec
	ctx        context.Context // of its Lock
	ch         chan delivery   // of one: the sender never blocks
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
