package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// member is one of the backends, with the order of the calls to it.
type member struct {
	driver.Backend
	name     string
	queue    ownerQueue
	releases pendingReleases
	silent   atomic.Bool // the last call was not answered
}

// note records whether the last call was answered. A member that was silent is called like
// all others, but it is not worth waiting for.
func (m *member) note(err error) { m.silent.Store(isUnknown(err)) }

// noteAll is like note for a batch: one answer is enough.
func (m *member) noteAll(errs []error) {
	for _, err := range errs {
		if m.note(err); !m.silent.Load() {
			return
		}
	}
}

// renewOne renews one hold.
func (m *member) renewOne(ctx context.Context, h driver.Hold) error {
	errs := m.Renew(ctx, []driver.Hold{h})
	err := errNoAnswer
	if len(errs) == 1 {
		err = errs[0]
	}
	m.note(err)
	return err
}

// isUnknown reports whether err is not an answer.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) &&
		!errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrSkip)
}

// ownerQueue keeps the calls for one Owner at one member in order. A decision does not wait
// for slow members, so the next call for that Owner may come while the last one is still
// running there, and the driver is promised one at a time.
type ownerQueue struct {
	mu   sync.Mutex
	last map[string]*queuedCall // by Owner, while it is running
}

// purpose is the purpose of a call.
type purpose uint8

const (
	forVote    purpose = iota // asks for a vote, or raises a fence
	forRenewal                // renews a vote
	forRelease                // releases a vote
	forRetry                  // repeats what an earlier call could not do
)

// replaces reports whether a call makes the one before it superfluous, if that has not begun.
// So calls do not pile up at a silent member.
func (p purpose) replaces(before purpose) bool {
	switch before {
	case forRenewal:
		return p != forRetry
	case forRelease:
		return p == forVote || p == forRelease
	}
	return false
}

// queuedCall is one call's place in the order.
type queuedCall struct {
	purpose  purpose
	owners   []string
	before   []*queuedCall
	done     chan struct{}
	replaced int // number of Owners for which a later call replaces it; the queue's mutex guards it
}

// add queues a call behind the running calls for its Owners.
func (q *ownerQueue) add(p purpose, owners []string) *queuedCall {
	c := &queuedCall{purpose: p, owners: owners, done: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == nil {
		q.last = map[string]*queuedCall{}
	}
	for _, owner := range owners {
		if last := q.last[owner]; last != nil && last != c {
			c.before = append(c.before, last)
			if p.replaces(last.purpose) {
				last.replaced++
			}
		}
		q.last[owner] = c
	}
	return c
}

// wait waits for the calls before it. That is bounded, since every call is.
func (c *queuedCall) wait() {
	for _, last := range c.before {
		<-last.done
	}
	c.before = nil
}

func (q *ownerQueue) remove(c *queuedCall) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, owner := range c.owners {
		if q.last[owner] == c {
			delete(q.last, owner)
		}
	}
	close(c.done)
}

func (q *ownerQueue) isReplaced(c *queuedCall) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return c.replaced == len(c.owners)
}

// idle reports whether no call for owner is running.
func (q *ownerQueue) idle(owner string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last[owner] == nil
}

// maxPending bounds the pending releases of one member. The holds beyond end with their TTL.
const maxPending = 10_000

// pendingReleases are the holds that one member may still have although they were released,
// or their attempt has failed. While the member is silent one of them is tried now and
// then; once it answers, all are released.
type pendingReleases struct {
	mu      sync.Mutex
	m       map[string]pendingRelease // by Owner
	running bool
}

type pendingRelease struct {
	driver.Hold
	end time.Time // it has ended by itself by then
}

// add reports whether the caller has to start the goroutine that releases.
func (p *pendingReleases) add(h driver.Hold, end time.Time) (start bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[string]pendingRelease{}
	}
	if len(p.m) >= maxPending {
		for owner := range p.m {
			delete(p.m, owner)
			break
		}
	}
	p.m[h.Owner] = pendingRelease{h, end}
	start = !p.running
	p.running = true
	return start
}

// remove is called when owner's hold is released, or owner wants it again.
func (p *pendingReleases) remove(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, owner)
}

func (p *pendingReleases) has(owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.m[owner]
	return ok
}

// next returns up to n holds that have not ended. If there are none, the goroutine that
// releases has to end.
func (p *pendingReleases) next(n int) []driver.Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var holds []driver.Hold
	for owner, r := range p.m {
		if now.After(r.end) {
			delete(p.m, owner)
			continue
		}
		if holds = append(holds, r.Hold); len(holds) == n {
			return holds
		}
	}
	p.running = len(holds) > 0
	return holds
}

// answer is what one member said.
type answer struct {
	member int
	err    error
}

// tally counts the members' answers about one hold.
type tally struct {
	of       int // members
	yes      int
	held     int // another Owner holds there
	lost     int
	final    int
	finalErr error
	unknown  []error
	unsent   int // number of the unknown answers for which the member was sent nothing
}

func (t *tally) add(m *member, err error) {
	switch {
	case err == nil:
		t.yes++
	case errors.Is(err, driver.ErrHeld):
		t.held++
	case errors.Is(err, driver.ErrLost):
		t.lost++
	case driver.Final(err):
		t.final++
		t.finalErr = fmt.Errorf("%s: %w", m.name, err)
	case errors.Is(err, driver.ErrUnsent):
		// The whole attempt is unsent only if it is unsent at all members.
		t.unknown = append(t.unknown, fmt.Errorf("%s: %v", m.name, err))
		t.unsent++
	default:
		t.unknown = append(t.unknown, fmt.Errorf("%s: %w", m.name, err))
	}
}

func (t *tally) answered() int {
	return t.yes + t.held + t.lost + t.final + len(t.unknown)
}

var errNoAnswer = errors.New("too few members answered")

// unknownErr returns the error for an unknown outcome. It wraps only the members' unknown
// errors, since none of the facts that single members have reported is one about the quorum.
func (t *tally) unknownErr(op, name string) error {
	var counts []string
	for _, c := range []struct {
		n    int
		what string
	}{{t.yes, "yes"}, {t.held, "held by someone else"}, {t.lost, "not held"}, {t.final, "no"}, {t.of - t.answered(), "no answer yet"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d said: %s", c.n, c.what))
		}
	}
	if n := len(t.unknown); n > 0 {
		counts = append(counts, fmt.Sprintf("%d failed", n))
	}
	err := fmt.Errorf("quorum: %s %s: %w (of %d members %s)", op, driver.Quote(name), errNoAnswer, t.of, strings.Join(counts, ", "))
	err = errors.Join(append([]error{err}, t.unknown...)...)
	if t.unsent == t.of {
		err = driver.Unsent(err)
	}
	return err
}
