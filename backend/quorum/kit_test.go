package quorum_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

var errReset = errors.New("connection reset")

// wire connects one process with the members. Each can be cut off, so that calls get no answer, and
// answers can be lost at random.
type wire struct {
	gates []gate
	calls atomic.Int64
	most  atomic.Int64 // calls at once for one Owner at one member
	loss  atomic.Int64 // answers lost, in percent; of some the request, too
}

// gate is closed while a member is cut off.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: open
	dead bool          // calls fail at once
	wait time.Duration // before each request

	member *link
	active map[string]int    // calls under way, by Owner
	onLost map[string]func() // by Owner
}

// slow makes a member's calls take d.
func (w *wire) slow(member int, d time.Duration) {
	g := &w.gates[member]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = d
}

// replace makes a member lose its memory.
func (w *wire) replace(member int, s *memlock.Store) {
	synctest.Wait() // an Acquire returns before its call of the last member
	g := &w.gates[member]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.member.Backend = s.Connect()
}

// lose makes a member report that an owner's hold is lost.
func (w *wire) lose(member int, owner string) {
	g := &w.gates[member]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onLost[owner]()
}

// enter counts the running calls for an owner.
func (w *wire) enter(member int, owner string) (leave func()) {
	g := &w.gates[member]
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active == nil {
		g.active = map[string]int{}
	}
	g.active[owner]++
	w.most.Store(max(w.most.Load(), int64(g.active[owner])))
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.active[owner]--
	}
}

func newWire(n int) *wire { return &wire{gates: make([]gate, n)} }

func (w *wire) to(member int, b *memlock.Backend) *link {
	l := &link{b, w, member}
	w.gates[member].member = l
	return l
}

func (w *wire) cut(members ...int) {
	for _, g := range w.pick(members) {
		g.mu.Lock()
		if g.open == nil {
			g.open = make(chan struct{})
		}
		g.mu.Unlock()
	}
}

func (w *wire) restore() {
	for i := range w.gates {
		g := &w.gates[i]
		g.mu.Lock()
		if g.dead, g.wait = false, 0; g.open != nil {
			close(g.open)
			g.open = nil
		}
		g.mu.Unlock()
	}
}

func (w *wire) kill(members ...int) {
	for _, g := range w.pick(members) {
		g.mu.Lock()
		g.dead = true
		g.mu.Unlock()
	}
}

// pick returns all members if none is named.
func (w *wire) pick(members []int) []*gate {
	var all []*gate
	for i := range w.gates {
		all = append(all, &w.gates[i])
	}
	if len(members) == 0 {
		return all
	}
	var some []*gate
	for _, i := range members {
		some = append(some, all[i])
	}
	return some
}

// link is a connection over a wire.
type link struct {
	*memlock.Backend
	w      *wire
	member int
}

// Caps returns the capabilities that a quorum uses.
func (l *link) Caps() driver.Caps {
	c := l.Backend.Caps()
	c.Queueing = driver.QueueNever
	return c
}

// pass carries a call to the member and its answer back.
func (l *link) pass(ctx context.Context, call func()) error {
	l.w.calls.Add(1)
	if err := l.through(ctx); err != nil {
		return err
	}
	lossy := rand.Int64N(100) < l.w.loss.Load()
	if lossy && rand.N(3) == 0 {
		return errReset
	}
	call()
	if lossy {
		return errReset
	}
	return l.through(ctx)
}

func (l *link) remember(r driver.Request) {
	g := &l.w.gates[l.member]
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.onLost == nil {
		g.onLost = map[string]func(){}
	}
	g.onLost[r.Owner] = r.OnLost
}

func (l *link) through(ctx context.Context) error {
	g := &l.w.gates[l.member]
	g.mu.Lock()
	open, dead, wait := g.open, g.dead, g.wait
	g.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait / 2): // there, and again on the way back
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if dead {
		return errReset
	}
	if open == nil {
		return nil
	}
	select {
	case <-open:
		return errReset
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	defer l.w.enter(l.member, r.Owner)()
	l.remember(r)
	if lost := l.pass(ctx, func() { g, err = l.Backend.Acquire(ctx, r) }); lost != nil {
		return driver.Grant{}, lost
	}
	return g, err
}

func (l *link) Renew(ctx context.Context, holds []driver.Hold) (errs []error) {
	for _, h := range holds {
		defer l.w.enter(l.member, h.Owner)()
	}
	if lost := l.pass(ctx, func() { errs = l.Backend.Renew(ctx, holds) }); lost != nil {
		errs = make([]error, len(holds))
		for i := range errs {
			errs[i] = lost
		}
	}
	return errs
}

func (l *link) Release(ctx context.Context, h driver.Hold) (err error) {
	defer l.w.enter(l.member, h.Owner)()
	if lost := l.pass(ctx, func() { err = l.Backend.Release(ctx, h) }); lost != nil {
		return lost
	}
	return err
}

func (l *link) Watch(ctx context.Context, r driver.Request) (w driver.Watch, err error) {
	if err := l.through(ctx); err != nil {
		return w, err
	}
	return l.Backend.Watch(ctx, r)
}

func (l *link) Inspect(ctx context.Context, name string) (info driver.Info, err error) {
	if err := l.through(ctx); err != nil {
		return info, err
	}
	return l.Backend.Inspect(ctx, name)
}

func (l *link) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if err := l.through(ctx); err != nil {
		return err
	}
	return l.Backend.List(ctx, prefix, yield)
}

// cluster has stores, to which each process connects over a wire of its own.
type cluster struct {
	t      testing.TB
	stores []*memlock.Store
}

func newCluster(t testing.TB, n int) *cluster {
	c := &cluster{t: t}
	for range n {
		c.stores = append(c.stores, memlock.NewStore())
	}
	return c
}

// inCluster calls f in virtual time, with stores and the backend of a first process.
func inCluster(t *testing.T, n int, f func(*testing.T, *cluster, *quorum.Backend, *wire)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n)
		b, w := c.process()
		f(t, c, b, w)
	})
}

// process makes a backend of its own.
func (c *cluster) process() (*quorum.Backend, *wire) {
	w := newWire(len(c.stores))
	var members []driver.Backend
	for i, s := range c.stores {
		members = append(members, w.to(i, s.Connect()))
	}
	b := must.Get(quorum.New(members, nil))(c.t)
	c.t.Cleanup(func() { b.Close() })
	return b, w
}

// votes counts the members that keep a lock for owner.
func (c *cluster) votes(h driver.Hold) int {
	n := 0
	for _, s := range c.stores {
		info := must.Get(s.Connect().Inspect(context.Background(), h.Name))(c.t)
		for _, holder := range info.Holders {
			if holder.Owner == h.Owner {
				n++
			}
		}
	}
	return n
}

// leavesNothing waits until all calls are done, and checks that no member keeps the lock for owner.
func (c *cluster) leavesNothing(t *testing.T, h driver.Hold) {
	t.Helper()
	synctest.Wait()
	c.hasVotes(t, h, 0)
}

// hasVotes checks how many members keep the lock for owner.
func (c *cluster) hasVotes(t *testing.T, h driver.Hold, want int) {
	t.Helper()
	expect.Equal(t, c.votes(h), want, "members have its vote")
}

func request(mode driver.Mode) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: "lock", Owner: driver.NewOwner(), Mode: mode, TTL: 8 * time.Second},
		Fences: 1, Limit: 1,
	}
}

func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	must.OK(t, err, "acquire")
	return g
}

// isUnknown fails the test unless err is neither nil nor a fact.
func isUnknown(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("%s: %v, want an unknown outcome", what, err)
	}
}

func within(t testing.TB, what string, since time.Time, want time.Duration) {
	t.Helper()
	if took := time.Since(since); took > want {
		t.Errorf("%s took %v, want at most %v", what, took, want)
	}
}
