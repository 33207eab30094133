package quorum

import (
	"context"
	"errors"
	"sync"
	"time"
)

// lane keeps the order of the calls for one Owner at one member. A decision does not
// wait for members that are slow, so the next call for that Owner may come while the
// last one is still under way there; the driver is promised one at a time.
type lane struct {
	mu   sync.Mutex
	last map[string]*turn // by Owner, as long as it is under way
}

// kind is what a call is for.
type kind uint8

const (
	asks   kind = iota // for a vote
	renews             // what it has
	cleans             // what may be left
	mends              // what an earlier call could not do
)

// spares reports whether a call makes one superfluous that is right before it and has
// not begun. So calls do not pile up before a member that is silent.
func (k kind) spares(before kind) bool {
	switch before {
	case renews:
		return k != mends
	case cleans:
		return k == asks || k == cleans
	}
	return false
}

// turn is one call's place in the order.
type turn struct {
	kind   kind
	owners []string
	before []*turn
	done   chan struct{}
	spared int // owners for whom a later call makes it superfluous; the lane's mutex guards it
}

// enter takes the place behind the calls for owners that are under way.
func (l *lane) enter(k kind, owners []string) *turn {
	t := &turn{kind: k, owners: owners, done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = map[string]*turn{}
	}
	for _, owner := range owners {
		if last := l.last[owner]; last != nil && last != t {
			t.before = append(t.before, last)
			if k.spares(last.kind) {
				last.spared++
			}
		}
		l.last[owner] = t
	}
	return t
}

// wait waits for its turn. That is bounded, since every call is.
func (t *turn) wait() {
	for _, last := range t.before {
		<-last.done
	}
	t.before = nil
}

func (l *lane) leave(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, owner := range t.owners {
		if l.last[owner] == t {
			delete(l.last, owner)
		}
	}
	close(t.done)
}

// isSpared reports whether t has become superfluous.
func (l *lane) isSpared(t *turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.spared == len(t.owners)
}

// idle reports whether no call for owner is under way.
func (l *lane) idle(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[owner] == nil
}

// errSpared is the answer to a call that was not made.
var errSpared = errors.New("it was still busy with an earlier call when a later one came")

// send runs f in the background, when the calls for these Owners at m that were sent
// before are over; spared if it need not be made any more, which those that ask and mend
// never are. The caller has begun a task.
func (b *Backend) send(m *member, k kind, owners []string, f func(spared bool)) {
	t := m.lane.enter(k, owners)
	b.tasks.Add(1)
	go func() {
		defer b.tasks.Done()
		defer m.lane.leave(t)
		t.wait()
		f(m.lane.isSpared(t))
	}()
}

// bound makes the context of one call to a member. It has the values of the caller's
// context, but does not end with it: what is under way at a member is awaited there, so
// that it is known what came of it.
func (b *Backend) bound(values context.Context, ttl time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(&carrier{b.life, values}, b.timeout(ttl))
}

// carrier is a context with the end of one and the values of another.
type carrier struct {
	context.Context
	values context.Context
}

func (c *carrier) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}
