package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
)

// member is one of the backends, with the order of the calls to it.
type member struct {
	members.Member
	queue    ownerQueue
	releases pendingReleases
	silent   atomic.Bool // the last call was not answered

	gate     *gate  // nil: it was compared with the others at Open
	identity string // which server it was when it was asked last; empty: it does not tell
}

// note records whether the last call was answered; for a batch one answer is enough. A member that
// was silent is called like all others, but it is not worth waiting for.
func (m *member) note(errs ...error) {
	m.silent.Store(len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !isUnknown(err) }))
}

// renewOne renews one hold.
func (m *member) renewOne(ctx context.Context, h driver.Hold) error {
	err := m.RenewOne(ctx, h)
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
	last map[string]chan struct{} // by Owner: closed when its last call has ended
}

// queuedCall is one call's place in the order.
type queuedCall struct {
	owners []string
	before []chan struct{}
	done   chan struct{}
}

// add queues a call behind the running calls for its Owners.
func (q *ownerQueue) add(owners []string) *queuedCall {
	c := &queuedCall{owners: owners, done: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last == nil {
		q.last = map[string]chan struct{}{}
	}
	for _, owner := range owners {
		if last := q.last[owner]; last != nil && last != c.done {
			c.before = append(c.before, last)
		}
		q.last[owner] = c.done
	}
	return c
}

// wait waits for the calls before it. That is bounded, since every call is.
func (c *queuedCall) wait() {
	for _, last := range c.before {
		<-last
	}
}

func (q *ownerQueue) remove(c *queuedCall) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, owner := range c.owners {
		if q.last[owner] == c.done {
			delete(q.last, owner)
		}
	}
	close(c.done)
}

// isReplaced reports whether a later call follows c for each of its Owners. Then c need not be made,
// so that calls do not pile up at a silent member.
func (q *ownerQueue) isReplaced(c *queuedCall) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !slices.ContainsFunc(c.owners, func(owner string) bool { return q.last[owner] == c.done })
}

// errReplaced is the answer to a call that was not made.
var errReplaced = errors.New("it was still busy with an earlier call when a later one came")

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
	ended   map[string]time.Time      // by Owner, whose hold a release has ended here: until when that is remembered
	running bool
}

type pendingRelease struct {
	driver.Hold
	end time.Time // it has ended by itself by then; zero: it lasts as long as a session
}

// add reports whether the caller has to start the goroutine that releases.
func (p *pendingReleases) add(h driver.Hold, end time.Time) (start bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep(&p.m, h.Owner, pendingRelease{h, end})
	start = !p.running
	p.running = true
	return start
}

// keep adds v to m, for any other if there are too many.
func keep[V any](m *map[string]V, owner string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	for other := range *m {
		if len(*m) < maxPending {
			break
		}
		delete(*m, other)
	}
	(*m)[owner] = v
}

// errEnded is a member's ErrLost about a hold that an earlier release has ended there, whose answer came too late for its caller.
var errEnded = fmt.Errorf("%w: an earlier release has ended it", driver.ErrLost)

// answered returns the answer to a release, which may be errEnded.
func (p *pendingReleases) answered(h driver.Hold, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		keep(&p.ended, h.Owner, time.Now().Add(max(h.TTL, defaultTTL)))
	} else if errors.Is(err, driver.ErrLost) && time.Now().Before(p.ended[h.Owner]) {
		return errEnded
	}
	return err
}

// told is called when the outcome of owner's release was told, or owner wants its hold again.
func (p *pendingReleases) told(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ended, owner)
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

// next returns a hold that has not ended. If there is none, the goroutine that releases has to end.
func (p *pendingReleases) next() (driver.Hold, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for owner, r := range p.m {
		if r.end.IsZero() || !now.After(r.end) {
			return r.Hold, true
		}
		delete(p.m, owner)
	}
	p.running = false
	return driver.Hold{}, false
}

// tally counts the members' answers about one hold.
type tally struct {
	of       int // members
	yes      int
	held     int // another Owner holds there
	lost     int
	ended    int // of the lost ones, those with errEnded
	skip     int // it lacks this optional call
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
	case err == errEnded:
		t.lost++
		t.ended++
	case errors.Is(err, driver.ErrLost):
		t.lost++
	case errors.Is(err, driver.ErrSkip):
		t.skip++
	case driver.Final(err):
		t.final++
		t.finalErr = fmt.Errorf("%s: %w", m.Name, err)
	case errors.Is(err, driver.ErrUnsent):
		// The whole attempt is unsent only if it is unsent at all members.
		t.unknown = append(t.unknown, fmt.Errorf("%s: %v", m.Name, err))
		t.unsent++
	default:
		t.unknown = append(t.unknown, fmt.Errorf("%s: %w", m.Name, err))
	}
}

func (t *tally) answered() int {
	return t.yes + t.held + t.lost + t.skip + t.final + len(t.unknown)
}

var errNoAnswer = errors.New("too few members answered")

// unknownErr returns the error for an unknown outcome. It wraps only the members' unknown
// errors, since none of the facts that single members have reported is one about the quorum.
func (t *tally) unknownErr(op, name string) error {
	var counts []string
	for _, c := range []struct {
		n    int
		what string
	}{{t.yes, "yes"}, {t.held, "held by another owner"}, {t.lost, "not held"}, {t.final, "no"}, {t.of - t.answered(), "no answer yet"}} {
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

// result returns nil if a majority said yes. Otherwise it returns a member's final error, or ErrSkip,
// if no majority is left without it; else the outcome is unknown.
func (t *tally) result(op, name string, majority int) error {
	switch {
	case t.yes >= majority:
		return nil
	case t.skip > t.of-majority:
		return driver.ErrSkip
	case t.final > t.of-majority:
		return fmt.Errorf("quorum: %s %s: %w", op, driver.Quote(name), t.finalErr)
	}
	return t.unknownErr(op, name)
}

// poll is a call to all members, with the answers so far.
type poll struct {
	tally
	b       *Backend
	answers chan answer
	pending []bool // by member
}

// answer is the answer of one member.
type answer struct {
	member int
	err    error
}

func (b *Backend) newPoll() *poll {
	n := len(b.members)
	return &poll{
		tally: tally{of: n}, b: b, answers: make(chan answer, n), pending: slices.Repeat([]bool{true}, n),
	}
}

// poll calls f for all members in the background.
func (b *Backend) poll(f func(i int, m *member) error) *poll {
	p := b.newPoll()
	for i, m := range b.members {
		b.calls.Go(func() { p.answers <- answer{i, f(i, m)} })
	}
	return p
}

// next waits for an answer. It returns false if none is worth waiting for, or ctx or late ends.
func (p *poll) next(ctx context.Context, late <-chan time.Time) bool {
	if !p.b.worthWaiting(func(member int) bool { return p.pending[member] }) {
		return false
	}
	select {
	case a := <-p.answers:
		p.pending[a.member] = false
		p.add(p.b.members[a.member], a.err)
		return true
	case <-late:
	case <-ctx.Done():
	}
	return false
}
