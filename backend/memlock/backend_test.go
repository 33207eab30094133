package memlock

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func request(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Minute},
		Fences: 1,
	}
}

func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g := must.Get(b.Acquire(t.Context(), r))(t)
	return g
}

func watchFor(t testing.TB, b *Backend, r driver.Request) driver.Watch {
	t.Helper()
	w := must.Get(b.Watch(t.Context(), r))(t)
	return w
}

// A hold lives to the last nanosecond of its TTL, and no longer.
func TestExactTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r, next := request("lock"), request("lock")
		take(t, b, r)
		time.Sleep(r.TTL - 1)
		_, err := b.Acquire(t.Context(), next)
		held, ok := errors.AsType[*driver.HeldError](err)
		if !ok || held.Retry != 1 || held.Holders[0].Owner != r.Owner {
			t.Errorf("a nanosecond before the end: %v", err)
		}
		time.Sleep(held.Retry)
		take(t, b, next)
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "release after the end")
	})
}

// Names are forgotten after a release or an expiry, and their fences still rise.
func TestForgetsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		b := s.Connect()
		first := take(t, b, request("lock"))
		time.Sleep(time.Hour)
		for i := range 20_000 {
			r := request(fmt.Sprint("name ", i))
			take(t, b, r)
			if i%2 == 0 {
				b.Release(t.Context(), r.Hold)
			}
			time.Sleep(time.Minute)
		}
		left := 0
		for i := range s.shards {
			left += len(s.shards[i].locks)
		}
		if left > 10*shards {
			t.Errorf("%d names are remembered after 20000 expired", left)
		}
		if g := take(t, b, request("lock")); g.Fence <= first.Fence {
			t.Errorf("fence %d after %d", g.Fence, first.Fence)
		}
	})
}

// Releases and closes leave nothing behind: no name, no watch.
func TestLeavesNothing(t *testing.T) {
	s := NewStore()
	b, other := s.Connect(), s.Connect()
	r, waiter := request("lock"), request("lock")
	waiter.Queue = true
	take(t, b, r)
	other.Acquire(t.Context(), waiter)
	w := watchFor(t, other, waiter)
	b.Watch(t.Context(), request("another"))
	b.Release(t.Context(), r.Hold)
	<-w.Ready
	other.Release(t.Context(), waiter.Hold)
	w.Close()
	b.Close()
	for i := range s.shards {
		for name, l := range s.shards[i].locks {
			t.Errorf("%q is left: %+v", name, l)
		}
	}
}

// A release wakes only the waiter that it lets in: the first in the queue.
func TestNoHerd(t *testing.T) {
	b := New()
	r := request("lock")
	take(t, b, r)
	var watches []driver.Watch
	for range 10 {
		w := request("lock")
		w.Queue = true
		b.Acquire(t.Context(), w)
		watches = append(watches, watchFor(t, b, w))
	}
	b.Release(t.Context(), r.Hold)
	for i, w := range watches {
		if woken := len(w.Ready) > 0; woken != (i == 0) {
			t.Errorf("waiter %d woken: %v", i, woken)
		}
		w.Close()
	}
}

func TestSpan(t *testing.T) {
	b := New()
	r := request("lock")
	r.Fences = 64
	if g := take(t, b, r); g.Fences != 64 {
		t.Errorf("alone: %d fences of 64", g.Fences)
	}
	r.Mode = driver.Read
	r.Name = "shared"
	if g := take(t, b, r); g.Fences != 1 {
		t.Errorf("shared: %d fences", g.Fences)
	}
}

func TestInvalid(t *testing.T) {
	b := New()
	for what, c := range map[string]struct {
		change func(*driver.Request)
		want   error
	}{
		"no name":          {func(r *driver.Request) { r.Name = "" }, driver.ErrInvalid},
		"no owner":         {func(r *driver.Request) { r.Owner = "" }, driver.ErrInvalid},
		"no TTL":           {func(r *driver.Request) { r.TTL = 0 }, driver.ErrInvalid},
		"endless":          {func(r *driver.Request) { r.TTL = math.MaxInt64 }, driver.ErrInvalid},
		"no mode":          {func(r *driver.Request) { r.Mode = 0 }, driver.ErrUnsupported},
		"unknown mode":     {func(r *driver.Request) { r.Mode = 7 }, driver.ErrUnsupported},
		"permits of none":  {func(r *driver.Request) { r.Mode = driver.Counted }, driver.ErrInvalid},
		"negative permits": {func(r *driver.Request) { r.Mode, r.Limit = driver.Counted, -1 }, driver.ErrInvalid},
	} {
		r := request("lock")
		c.change(&r)
		expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), c.want, what)
	}
}

// A renewal whose end would overflow is refused, and ends no hold.
func TestEndlessRenewal(t *testing.T) {
	b := New()
	r := request("lock")
	take(t, b, r)
	endless := r.Hold
	endless.TTL = math.MaxInt64
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{endless})[0], driver.ErrInvalid, "Renew")
	expect.Be(t, expect.Err(b.Acquire(t.Context(), request("lock"))), driver.ErrHeld, "Acquire by another")
}

// Fences never leave the signed range.
func TestFenceBounds(t *testing.T) {
	b := New()
	r := request("lock")
	take(t, b, r)
	r.Floor = maxFence + 1
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrInvalid, "a floor beyond the range")
	r.Floor = maxFence - 1
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "the greatest floor")
	r.Fences = 1 << 40
	if g := take(t, b, r); g.Last() >= 1<<63 {
		t.Errorf("fences %d to %d", g.Fence, g.Last())
	}
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrInvalid, "when the fences are used up")
}

// Connections that come and go do not disturb others.
func TestConnectionsComeAndGo(t *testing.T) {
	s := NewStore()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				b := s.Connect()
				r := request("lock")
				w, err := b.Watch(t.Context(), r)
				expect.OK(t, err)
				if _, err := b.Acquire(t.Context(), r); err == nil {
					b.Release(t.Context(), r.Hold)
				}
				b.Close()
				w.Close()
			}
		})
	}
	wg.Wait()
	take(t, s.Connect(), request("lock"))
}

func open(t *testing.T, url string) driver.Backend {
	t.Helper()
	b := must.Get(driver.Open(t.Context(), url))(t)
	return b
}

// Connections to mem:NAME share a store, those to mem: don't.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		one, two string
		shared   bool
	}{
		{"mem:", "mem:", false},
		{"mem:jobs", "mem:jobs", true},
		{"mem:jobs", "mem:Jobs", false},
		{"mem:team/a b", "mem:team/a%20b", true},
	} {
		one, two := open(t, c.one), open(t, c.two)
		r := request(driver.NewOwner())
		take(t, one, r)
		_, err := two.Acquire(t.Context(), request(r.Name))
		if errors.Is(err, driver.ErrHeld) != c.shared {
			t.Errorf("%s and %s: got %v, want shared %v", c.one, c.two, err, c.shared)
		}
		if same := one.Caps().Name == two.Caps().Name; same != c.shared {
			t.Errorf("%s and %s are named %q and %q", c.one, c.two, one.Caps().Name, two.Caps().Name)
		}
		one.Release(t.Context(), r.Hold)
	}
}

func TestOpenInvalid(t *testing.T) {
	for url, want := range map[string]string{
		"mem:jobs?ttl=5s":      `unknown parameter "ttl"`,
		"mem://localhost":      "want mem:",
		"mem:/jobs":            "want mem:",
		"mem:jobs#1":           "want mem:",
		"mem://user:secret@/x": "want mem:",
		"mem:%zz":              "URL",
	} {
		_, err := driver.Open(t.Context(), url)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
