package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// scene is a store whose clock tests move, and what may be broken about it.
type scene struct {
	*store
	now    int64
	mutate func(*Change) // breaks a rule
	behind int64         // by how much the clock that the store tells is behind that by which it judges
}

func newScene() *scene {
	s := &scene{store: newStore(), now: time.Hour.Microseconds()}
	s.clock = func() int64 { return s.now }
	return s
}

// client is one backend on a scene. What it sends is kept while lose is set, and arrives with late.
type client struct {
	*Backend
	conn *conn
	lose bool
	kept []Change
}

var errLost = errors.New("no answer")

func (s *scene) client() *client {
	c := &client{conn: s.connect()}
	c.conn.before = func(changes []Change) error {
		for i := range changes {
			if s.mutate != nil {
				s.mutate(&changes[i])
			}
		}
		if c.lose {
			c.kept = append(c.kept, changes...)
			return errLost
		}
		return nil
	}
	c.conn.tell = func(now int64) int64 { return now - s.behind }
	c.Backend = New(c.conn, Options{Package: "engine", Name: "scene"})
	return c
}

// late delivers what was lost.
func (c *client) late() {
	c.lose = false
	c.conn.apply(context.Background(), c.kept)
}

func request(mode driver.Mode) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: mode, TTL: time.Second}, Limit: 2, Fences: 1}
}

func queued(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// want returns an error if a call does not answer as it should.
func want(what string, err, as error) error {
	if !errors.Is(err, as) || (err == nil) != (as == nil) {
		return fmt.Errorf("%s: %v, want %v", what, err, as)
	}
	return nil
}

func (s *scene) holders(b driver.Inspector) int {
	i, err := b.Inspect(context.Background(), "x")
	if err != nil {
		panic(err)
	}
	return len(i.Holders) + len(i.Waiters)
}

// rules are promises that rest on one rule each, and the store with which the engine goes without it.
var rules = []struct {
	name    string
	without func(*scene)
	check   func(ctx context.Context, s *scene) error
}{
	{"a renewal is void once the hold has ended", func(s *scene) { s.mutate = func(c *Change) { c.Before = 0 } }, func(ctx context.Context, s *scene) error {
		a, r := s.client(), request(driver.Exclusive)
		_, err := a.Acquire(ctx, r)
		a.lose = true
		err = errors.Join(err, want("a renewal that is lost", a.Renew(ctx, []driver.Hold{r.Hold})[0], errLost))
		s.now += 2 * r.TTL.Microseconds()
		a.lose = false
		err = errors.Join(err, want("a release of a hold that has ended", a.Release(ctx, r.Hold), driver.ErrLost))
		a.late()
		if n := s.holders(a); n > 0 {
			return errors.Join(err, errors.New("the late renewal has revived the hold"))
		}
		return err
	}},
	{"a grant is void once it has ended", func(s *scene) { s.mutate = func(c *Change) { c.Before = 0 } }, func(ctx context.Context, s *scene) error {
		a, b, r, w := s.client(), s.client(), request(driver.Write), queued(request(driver.Write))
		w.TTL = time.Hour
		_, err := a.Acquire(ctx, r)
		_, refused := b.Acquire(ctx, w)
		err = errors.Join(err, want("a second writer", refused, driver.ErrHeld), a.Release(ctx, r.Hold))
		b.lose = true
		w.TTL = r.TTL
		_, lost := b.Acquire(ctx, w)
		s.now += 2 * r.TTL.Microseconds()
		before := s.kept["x"].Version
		if b.late(); s.kept["x"].Version != before {
			return errors.New("a grant took effect after its end")
		}
		return errors.Join(err, want("a grant that is lost", lost, errLost))
	}},
	{"the end of an own hold counts from an upper bound", func(s *scene) { s.behind = 100_000 }, func(ctx context.Context, s *scene) error {
		a := s.client()
		for range 3 { // at first the clock is read, then it is estimated
			r := request(driver.Exclusive)
			_, err := a.Acquire(ctx, r)
			left := s.kept["x"].Until - s.now
			err = errors.Join(err, a.Renew(ctx, []driver.Hold{r.Hold})[0])
			if renewed := s.kept["x"].Until - s.now; err != nil || min(left, renewed) < r.TTL.Microseconds() {
				return errors.Join(err, fmt.Errorf("a hold lasts for %d µs, and %d when it is renewed", left, renewed))
			}
			if err := a.Release(ctx, r.Hold); err != nil {
				return err
			}
		}
		return nil
	}},
	{"others' holds end by the clock of the change", func(s *scene) { s.mutate = func(c *Change) { c.Since = 0 } }, func(ctx context.Context, s *scene) error {
		a, b, r := s.client(), s.client(), request(driver.Exclusive)
		_, err := a.Acquire(ctx, r)
		s.behind = -10 * r.TTL.Microseconds() // reads are answered by another server
		_, stolen := b.Acquire(ctx, request(driver.Exclusive))
		if stolen == nil {
			return errors.New("a hold that lasts was passed")
		}
		return err
	}},
	{"a place that was lost does not come after its release", func(s *scene) { s.mutate = func(c *Change) { c.Void = 0 } }, func(ctx context.Context, s *scene) error {
		a, b, r, w := s.client(), s.client(), request(driver.Exclusive), queued(request(driver.Exclusive))
		_, err := a.Acquire(ctx, r)
		_, refused := b.Acquire(ctx, request(driver.Exclusive)) // b knows the lock
		b.lose = true
		_, lost := b.Acquire(ctx, w)
		b.lose = false
		err = errors.Join(err, want("a try", refused, driver.ErrHeld), want("a place that is lost", lost, errLost), want("its release", b.Release(ctx, w.Hold), driver.ErrLost))
		if b.late(); s.holders(a) != 1 {
			return errors.Join(err, errors.New("there is a place that nobody will release"))
		}
		return err
	}},
	{"a grant that was lost does not come after its release", func(s *scene) { s.mutate = func(c *Change) { c.Void = 0 } }, func(ctx context.Context, s *scene) error {
		a, b, r := s.client(), s.client(), request(driver.Exclusive)
		_, err := a.Acquire(ctx, r)
		err = errors.Join(err, a.Release(ctx, r.Hold))
		_, held := b.Acquire(ctx, r) // another client in between: what a knows is an older version
		err = errors.Join(err, held, b.Release(ctx, r.Hold))
		a.lose = true
		next := request(driver.Exclusive)
		_, lost := a.Acquire(ctx, next)
		a.lose = false
		err = errors.Join(err, want("a grant that is lost", lost, errLost), want("its release", a.Release(ctx, next.Hold), driver.ErrLost))
		if a.late(); s.holders(a) > 0 {
			return errors.Join(err, errors.New("there is a hold that nobody will release"))
		}
		return err
	}},
	{"an attempt that is repeated makes one claim", func(s *scene) { s.mutate = func(c *Change) { c.Void = 0 } }, func(ctx context.Context, s *scene) error {
		a, b, r, w := s.client(), s.client(), request(driver.Exclusive), queued(request(driver.Exclusive))
		_, err := a.Acquire(ctx, r)
		_, _ = b.Acquire(ctx, request(driver.Exclusive))
		b.lose = true
		_, lost := b.Acquire(ctx, w)
		b.lose = false
		_, again := b.Acquire(ctx, w)
		b.late()
		if n := s.holders(a); n != 2 {
			return fmt.Errorf("%d claims, want the holder and one place", n)
		}
		return errors.Join(err, want("a place that is lost", lost, errLost), want("again", again, driver.ErrHeld))
	}},
}

// Each promise holds, and does not without its rule.
func TestRules(t *testing.T) {
	for _, rule := range rules {
		if err := rule.check(t.Context(), newScene()); err != nil {
			t.Errorf("%s: %v", rule.name, err)
		}
		s := newScene()
		if rule.without(s); rule.check(t.Context(), s) == nil {
			t.Errorf("%s: the check does not find what breaks that", rule.name)
		}
	}
}

// Others' holds end by the store's clock. A client whose own clock runs fast passes none.
func TestFastClient(t *testing.T) {
	s := newScene()
	a, b := s.client(), s.client()
	must.Get(a.Acquire(t.Context(), request(driver.Write)))(t)
	expect.Be(t, expect.Err(b.Acquire(t.Context(), request(driver.Write))), driver.ErrHeld)
	for _, queue := range []bool{false, true} {
		b.memory.asked = b.memory.asked.Add(-3 * time.Second) // by its own clock the hold is over
		r := request(driver.Write)
		r.Queue = queue
		expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrHeld, queue)
	}
}

// How long a lock has been held counts from its grant by the store's clock, also if a slow answer has put the estimate of that clock ahead.
func TestHeldBehindASlowAnswer(t *testing.T) {
	s := newScene()
	a, r := s.client(), request(driver.Exclusive)
	must.Get(a.Inspect(t.Context(), "x"))(t)
	a.memory.asked = a.memory.asked.Add(-5 * time.Second)
	must.Get(a.Acquire(t.Context(), r))(t)
	s.now += 2 * time.Second.Microseconds()
	expect.Equal(t, must.Get(a.Inspect(t.Context(), "x"))(t).Holders[0].Held, 2*time.Second, "Inspect")
	var held *driver.HeldError
	if _, err := s.client().Acquire(t.Context(), request(driver.Exclusive)); !errors.As(err, &held) {
		t.Fatal(err)
	}
	expect.Equal(t, held.Holders[0].Held, 2*time.Second, "a refusal")
}

// Holds end in the order in which they were granted, also if a slow answer has put the estimate of the store's clock ahead: unless the
// clock goes back.
func TestHoldsEndInOrder(t *testing.T) {
	s := newScene()
	a := s.client()
	must.Get(a.Inspect(t.Context(), "x"))(t)
	a.memory.asked = a.memory.asked.Add(-5 * time.Second)
	ends := func(name string) int64 {
		r := request(driver.Exclusive)
		r.Name = name
		must.Get(a.Acquire(t.Context(), r))(t)
		return s.kept[name].Until
	}
	first := ends("first")
	if second := ends("second"); second < first {
		t.Errorf("the second ends %v before the first", time.Duration(first-second)*time.Microsecond)
	}
	s.now -= time.Minute.Microseconds()
	must.Get(a.Inspect(t.Context(), "x"))(t)
	if third := ends("third"); third > first-50*time.Second.Microseconds() {
		t.Errorf("a hold by a clock that went back by a minute ends %v after the first", time.Duration(third-first)*time.Microsecond)
	}
}

// If the store's clock has jumped ahead, a grant and a renewal are written once more: they last for their TTL.
func TestClockThatJumps(t *testing.T) {
	s := newScene()
	a, r := s.client(), request(driver.Exclusive)
	r.TTL = time.Minute
	must.Get(a.Acquire(t.Context(), r))(t)
	left := func() time.Duration {
		return must.Get(a.Inspect(t.Context(), "x"))(t).Holders[0].Left
	}
	s.now += 40 * time.Second.Microseconds()
	must.OK(t, a.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	if got := left(); got < r.TTL {
		t.Errorf("a renewal lasts for %v", got)
	}
	must.OK(t, a.Release(t.Context(), r.Hold))
	s.now += 40 * time.Second.Microseconds()
	r.Owner = driver.NewOwner()
	must.Get(a.Acquire(t.Context(), r))(t)
	if got := left(); got < r.TTL {
		t.Errorf("a grant lasts for %v", got)
	}
}

// What a holder or a waiter needs never conflicts with what others change: it is one change each.
func TestOthersChangeTheLock(t *testing.T) {
	s := newScene()
	a, other := s.client(), s.client()
	for _, mode := range []driver.Mode{driver.Write, driver.Read, driver.Counted} {
		r := request(mode)
		r.Name = mode.String()
		disturb := func() {
			p := queued(request(driver.Write))
			p.Name = r.Name
			expect.Be(t, expect.Err(other.Acquire(t.Context(), p)), driver.ErrHeld)
		}
		before := a.conn.before
		calls := 0
		one := func(what string, f func() error) {
			t.Helper()
			calls = 0
			a.conn.before = func(changes []Change) error { calls++; disturb(); return before(changes) }
			err := f()
			a.conn.before = before
			if err != nil || calls != 1 {
				t.Errorf("%v, %s: %d changes, %v", mode, what, calls, err)
			}
		}
		must.Get(a.Acquire(t.Context(), r))(t)
		one("a renewal", func() error { return a.Renew(t.Context(), []driver.Hold{r.Hold})[0] })
		one("a grant to the holder", func() error { _, err := a.Acquire(t.Context(), r); return err })
		one("a release", func() error { return a.Release(t.Context(), r.Hold) })
	}
}

// A crash of the store may take back a release or a place, and nothing else that was answered.
func TestOnlyReleasesAndPlacesAreLazy(t *testing.T) {
	s := newScene()
	a, b := s.client(), s.client()
	lazy := func(c *client, f func() error) (list []bool) {
		before := c.conn.before
		c.conn.before = func(changes []Change) error {
			for _, ch := range changes {
				list = append(list, ch.Lazy)
			}
			return before(changes)
		}
		_ = f()
		c.conn.before = before
		return list
	}
	for _, mode := range []driver.Mode{driver.Write, driver.Read, driver.Counted} {
		r, w := request(mode), queued(request(driver.Exclusive))
		r.Name, w.Name = mode.String(), mode.String()
		acquire := func(c *client, r driver.Request) func() error {
			return func() error { _, err := c.Acquire(t.Context(), r); return err }
		}
		expect.Equal(t, fmt.Sprint(lazy(a, acquire(a, r))), "[false]", "a grant")
		expect.Equal(t, fmt.Sprint(lazy(a, func() error { return a.Renew(t.Context(), []driver.Hold{r.Hold})[0] })), "[false]", "a renewal")
		expect.Equal(t, fmt.Sprint(lazy(a, acquire(a, r))), "[false]", "a grant to the holder")
		list := lazy(b, acquire(b, w)) // of several changes the last one is made
		expect.Equal(t, list[len(list)-1], true, "a place")
		expect.Equal(t, fmt.Sprint(lazy(a, func() error { return a.Release(t.Context(), r.Hold) })), "[true]", "a release")
		expect.Equal(t, fmt.Sprint(lazy(b, acquire(b, w))), "[false]", "a place that becomes a hold")
	}
}

// A name that was removed from the store comes back with a grant only.
func TestRemovedName(t *testing.T) {
	s := newScene()
	a, r := s.client(), request(driver.Exclusive)
	must.Get(a.Acquire(t.Context(), r))(t)
	delete(s.kept, "x")
	expect.Be(t, a.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost)
	expect.Be(t, a.Release(t.Context(), r.Hold), driver.ErrLost)
	expect.Equal(t, len(s.kept), 0)
	must.Get(a.Acquire(t.Context(), request(driver.Exclusive)))(t)
}
