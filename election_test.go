package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// candidate is a process that campaigns. Its terms wait for orders.
type candidate struct {
	*distlock.Election
	client *distlock.Client
	began  chan uint64 // the fence of each term
	order  chan error  // ends a term; or its context does
	cause  chan error  // of each term's context, nil if it had not ended
	after  error       // is returned by terms that are over
	stop   context.CancelFunc
	result chan error // of Lead
}

// campaign lets a new client take part in the election x.
func campaign(t testing.TB, b driver.Backend, opts ...distlock.LockOption) *candidate {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := client(t, b, nil)
	k := &candidate{
		Election: c.Election("x", opts...), client: c, stop: stop,
		began: make(chan uint64, 1), order: make(chan error), cause: make(chan error, 8), result: make(chan error, 1),
	}
	go func() { k.result <- k.Lead(ctx, k.lead) }()
	t.Cleanup(stop)
	return k
}

func (k *candidate) lead(term context.Context) error {
	k.began <- distlock.Fence(term)
	select {
	case err := <-k.order:
		k.cause <- context.Cause(term)
		return err
	case <-term.Done():
		k.cause <- context.Cause(term)
		return k.after
	}
}

// leads waits until k leads, and returns its term's number.
func (k *candidate) leads(t testing.TB) uint64 {
	t.Helper()
	select {
	case fence := <-k.began:
		return fence
	case err := <-k.result:
		t.Fatalf("Lead: %v", err)
	case <-time.After(time.Hour):
		t.Fatal("it is not elected")
	}
	return 0
}

// idles fails if k leads within d.
func (k *candidate) idles(t testing.TB, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if len(k.began) > 0 {
		t.Errorf("term %d began too early", <-k.began)
	}
}

// stops stops k while it waits or leads.
func (k *candidate) stops(t testing.TB) {
	t.Helper()
	k.stop()
	expect.Be(t, <-k.result, context.Canceled, "Lead")
}

// unreachable is an attempt that gets no answer.
func unreachable(context.Context, driver.Request, acquirer) (driver.Grant, error) {
	return driver.Grant{}, errNetwork
}

// withAndWithoutQueue runs a test with waiters in a queue at the backend, and without.
func withAndWithoutQueue(t *testing.T, test func(t *testing.T, connect func() *rig)) {
	for _, queue := range []bool{true, false} {
		t.Run(fmt.Sprintf("queue=%v", queue), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				test(t, func() *rig {
					r := &rig{Backend: store.Connect()}
					if !queue {
						r.caps = withoutQueue
					}
					return r
				})
			})
		})
	}
}

func TestElectionByResignation(t *testing.T) {
	withAndWithoutQueue(t, func(t *testing.T, connect func() *rig) {
		a := campaign(t, connect())
		first := a.leads(t)
		b := campaign(t, connect())
		synctest.Wait()
		time.Sleep(time.Hour)
		resigned := time.Now()
		a.order <- nil
		second := b.leads(t)
		within(t, "the next leader leads", time.Since(resigned), 0, time.Second)
		a.idles(t, time.Hour)
		b.stop()
		third := a.leads(t)
		if !slices.IsSorted([]uint64{first, second, third}) || first == second || second == third {
			t.Errorf("terms %d, %d, %d", first, second, third)
		}
		a.stops(t)
		expect.Be(t, <-b.cause, context.Canceled, "the term ended by")
	})
}

// A candidate that resigned stays away for two seconds, even without any other.
func TestElectionOfOneCandidate(t *testing.T) {
	withAndWithoutQueue(t, func(t *testing.T, connect func() *rig) {
		a := campaign(t, connect())
		for range 3 {
			a.leads(t)
			a.order <- nil
			a.idles(t, 1999*time.Millisecond)
			free(t, a.client, "x")
		}
		a.leads(t)
		a.stops(t)
		free(t, a.client, "x")
	})
}

// The context of a lost term ends before another candidate leads. The candidate campaigns again,
// whatever its lead returned because of the loss.
func TestElectionAfterLoss(t *testing.T) {
	withAndWithoutQueue(t, func(t *testing.T, connect func() *rig) {
		cut := connect()
		a := campaign(t, cut)
		a.after = errors.New("what follows from the loss")
		a.leads(t)
		b := campaign(t, connect())
		synctest.Wait()
		cut.set(func(r *rig) {
			r.renew = blackHole
			r.acquire = unreachable
		})
		b.leads(t)
		if len(a.cause) == 0 {
			t.Error("two led at once")
		} else if err := <-a.cause; !errors.Is(err, distlock.ErrLost) {
			t.Errorf("the term ended by %v", err)
		}
		a.idles(t, time.Hour)
		cut.set(func(r *rig) { r.renew, r.acquire = nil, nil })
		b.order <- nil
		a.leads(t)
		a.after = nil
		a.stops(t)
		b.leads(t)
		b.stops(t)
	})
}

func TestElectionStepDown(t *testing.T) {
	withAndWithoutQueue(t, func(t *testing.T, connect func() *rig) {
		a := campaign(t, connect())
		a.after = errors.New("what follows from the request")
		a.leads(t)
		b := campaign(t, connect())
		synctest.Wait()
		ask(t, b.client, "x")
		b.leads(t)
		if err := <-a.cause; !errors.Is(err, distlock.ErrRevoked) || err.Error() != `distlock: lead "x": release requested` {
			t.Errorf("the term ended by %v", err)
		}
		b.stops(t)
		a.leads(t)
		ask(t, b.client, "x")
		a.idles(t, 1999*time.Millisecond)
		free(t, b.client, "x")
		a.leads(t)
		a.after = nil
		a.stops(t)
	})
}

// A leader that is asked to step down holds the lock until its work has ended.
func TestElectionStepDownWaitsForTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		ctx, stop := context.WithCancel(t.Context())
		asked, done := make(chan struct{}), make(chan struct{})
		result := make(chan error)
		go func() {
			result <- c.Election("x").Lead(ctx, func(term context.Context) error {
				<-term.Done()
				close(asked)
				<-done
				return nil
			})
		}()
		synctest.Wait()
		ask(t, c, "x")
		<-asked
		time.Sleep(time.Hour)
		expect.Equal(t, len(inspect(t, c, "x").Holders), 1, "the lock was released while the work went on")
		stop()
		close(done)
		<-result
		free(t, c, "x")
	})
}

// With an option Revocable of its own, a candidate decides itself.
func TestElectionRevocable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		option, asked := revocableOption()
		a := campaign(t, memlock.New(), option)
		a.leads(t)
		ask(t, a.client, "x")
		<-asked
		time.Sleep(time.Hour)
		if len(a.cause) > 0 {
			t.Errorf("the term ended by %v", <-a.cause)
		}
		a.stops(t)
	})
}

// Where holders can't be asked, there are elections all the same.
func TestElectionWithoutRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := campaign(t, speechless{memlock.New()})
		a.leads(t)
		a.stops(t)
	})
}

func TestLeadEndsWithTheErrorOfLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := errors.New("disk full")
		a := campaign(t, memlock.New())
		a.leads(t)
		a.order <- disk
		if err := <-a.result; !errors.Is(err, disk) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("Lead: %v", err)
		}
		free(t, a.client, "x")
	})
}

// The end of a Lead by its context tells of what went wrong meanwhile.
func TestLeadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := errors.New("disk full")
		r := newRig()
		r.release = func(context.Context, driver.Hold, releaser) error { return errNetwork }
		a := campaign(t, r)
		a.after = disk
		a.leads(t)
		a.stop()
		err := <-a.result
		for _, want := range []error{context.Canceled, disk, distlock.ErrUnavailable} {
			expect.Be(t, err, want, "Lead")
		}
		r.set(func(r *rig) { r.release = nil })

		// While it stands aside it ends at once, too.
		b := campaign(t, memlock.New())
		b.leads(t)
		b.order <- nil
		synctest.Wait()
		b.stops(t)
	})
}

func TestLeadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := func(context.Context) error { t.Error("it led"); return nil }
		c := client(t, memlock.New(), nil)
		closed := must.Get(distlock.New(memlock.New(), nil))(t)
		closed.Close()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		held := mustLock(t, c.Mutex("held"))
		for what, test := range map[string]struct {
			ctx  context.Context
			e    *distlock.Election
			want error
		}{
			"a bad name":        {t.Context(), c.Election(""), distlock.ErrInvalid},
			"a bad option":      {t.Context(), c.Election("x", distlock.WithTTL(-1)), distlock.ErrInvalid},
			"a closed client":   {t.Context(), closed.Election("x"), distlock.ErrClosed},
			"an ended context":  {ended, c.Election("x"), context.Canceled},
			"a bounded wait":    {t.Context(), c.Election("held", distlock.WaitAtMost(time.Minute)), context.DeadlineExceeded},
			"a lock of its own": {held.Context(), c.Election("held"), distlock.ErrInvalid},
		} {
			expect.Be(t, test.e.Lead(test.ctx, never), test.want, what)
		}
		mustUnlock(t, held)
	})
}

// A client that is closed ends the terms of its leaders, and their Lead, in a term or between two.
func TestLeadOfAClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, resigns := range []bool{false, true} {
			a := campaign(t, memlock.New())
			a.leads(t)
			if resigns {
				a.order <- nil
				synctest.Wait()
			}
			closed := time.Now()
			expect.OK(t, a.client.Close())
			if err := <-a.result; !errors.Is(err, distlock.ErrClosed) || time.Since(closed) > 0 {
				t.Errorf("Lead: %v, after %v", err, time.Since(closed))
			}
		}
	})
}

// A candidate waits while the backend can't be reached.
func TestElectionDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = unreachable
		a := campaign(t, r)
		a.idles(t, time.Hour)
		r.set(func(r *rig) { r.acquire = nil })
		a.leads(t)
		a.stops(t)
	})
}

func TestLeadPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		func() {
			defer func() {
				expect.Equal(t, recover(), "on purpose", "recovered")
			}()
			_ = c.Election("x").Lead(t.Context(), func(context.Context) error { panic("on purpose") })
		}()
		free(t, c, "x")
	})
}

// Two candidates of one process take turns like candidates of two processes, and Inspect shows each term, also where
// a Mutex would be handed off.
func TestElectionInOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.caps = func(caps driver.Caps) driver.Caps {
			caps.Revocable = 0
			return withoutQueue(caps)
		}
		a := campaign(t, r)
		a.leads(t)
		b := make(chan uint64)
		go a.client.Election("x").Lead(t.Context(), func(term context.Context) error {
			b <- distlock.Fence(term)
			<-term.Done()
			return nil
		})
		synctest.Wait()
		a.order <- nil
		fence := <-b
		if h, err := a.Leader(t.Context()); err != nil || h.Fence != fence {
			t.Errorf("Leader: fence %d, %v; want %d", h.Fence, err, fence)
		}
		a.idles(t, time.Hour)
		a.stops(t)
	})
}

func TestLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, store.Connect(), nil)
		e := c.Election("x")
		if h, err := e.Leader(t.Context()); !errors.Is(err, distlock.ErrNoLeader) || err.Error() != `distlock: leader "x": no leader` {
			t.Errorf("Leader: %v, %v", h, err)
		}
		a := campaign(t, store.Connect(), distlock.WithMeta(map[string]string{"address": "10.0.0.7:80"}))
		fence := a.leads(t)
		if h, err := e.Leader(t.Context()); err != nil || h.Meta["address"] != "10.0.0.7:80" || h.Fence != fence {
			t.Errorf("Leader: %v, %v", h, err)
		}
		expect.Be(t, expect.Err(c.Election("").Leader(t.Context())), distlock.ErrInvalid, "Leader of no name")
		a.stops(t)
	})
}

// flaky is a backend whose Inspect can fail.
type flaky struct {
	*memlock.Backend
	fails atomic.Pointer[error]
}

func (f *flaky) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := f.fails.Load(); err != nil {
		return driver.Info{}, *err
	}
	return f.Backend.Inspect(ctx, name)
}

func TestLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		b := &flaky{Backend: store.Connect()}
		ctx, stop := context.WithCancel(t.Context())
		seen, over := make(chan string), make(chan bool)
		go func() {
			defer close(over)
			for h, err := range client(t, b, nil).Election("x").Leaders(ctx) {
				e := (*distlock.Error)(nil)
				switch {
				case err == nil:
					seen <- h.Meta["who"]
				case errors.As(err, &e):
					seen <- strings.TrimPrefix(e.Kind.Error(), "distlock: ")
				}
			}
		}()
		sees := func(want string) {
			t.Helper()
			changed := time.Now()
			expect.Equal(t, <-seen, want, "saw")
			within(t, "it was seen", time.Since(changed), 0, 4500*time.Millisecond)
			time.Sleep(time.Hour) // and only once
		}
		who := func(name string) distlock.LockOption { return distlock.WithMeta(map[string]string{"who": name}) }
		outage := func(want string) {
			t.Helper()
			b.fails.Store(&errNetwork)
			sees("backend unavailable")
			b.fails.Store(nil)
			sees(want)
		}
		sees("no leader")
		outage("no leader")
		one := campaign(t, store.Connect(), who("one"))
		one.leads(t)
		sees("one")
		two := campaign(t, store.Connect(), who("two"))
		synctest.Wait()
		one.order <- nil
		two.leads(t)
		sees("two")
		outage("two")
		one.stops(t)
		two.order <- nil
		two.leads(t)
		got := <-seen
		if got == "no leader" { // which is as long as the time between two looks
			got = <-seen
		}
		expect.Equal(t, got, "two", "saw")
		stop()
		<-over
		two.stops(t)
	})
}

// hidden is a backend through a server that shows neither Owners nor fences.
type hidden struct{ *memlock.Backend }

func (b hidden) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info, err := b.Backend.Inspect(ctx, name)
	for i := range info.Holders {
		info.Holders[i].Owner, info.Holders[i].Fence = "", 0
	}
	return info, err
}

func TestLeadersOfHiddenOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, hidden{memlock.New()}, nil)
		mustLock(t, c.Mutex("x", distlock.WithMeta(map[string]string{"who": "a"})))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for h, err := range c.Election("x").Leaders(ctx) {
			if err != nil || h.Meta["who"] != "a" {
				t.Errorf("got %+v, %v", h, err)
			}
			return
		}
		t.Error("a leader is never seen")
	})
}

func TestLeadersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &flaky{Backend: memlock.New()}
		b.fails.Store(&driver.ErrSkip)
		c := client(t, b, nil)
		yields := func(e *distlock.Election, want error) {
			t.Helper()
			n := 0
			for _, err := range e.Leaders(t.Context()) {
				if n++; n > 1 || !errors.Is(err, want) {
					t.Errorf("yield %d: %v, want %v", n, err, want)
				}
			}
		}
		yields(c.Election("x"), distlock.ErrUnsupported)
		yields(c.Election(""), distlock.ErrInvalid)
		b.fails.Store(nil)
		for range c.Election("x").Leaders(t.Context()) {
			break
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range c.Election("x").Leaders(ended) {
			t.Errorf("yielded %v after the end", err)
		}
	})
}

func TestTryDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		m, disk := c.Mutex("x"), errors.New("disk full")
		ran, err := m.TryDo(t.Context(), func(ctx context.Context) error {
			if distlock.Fence(ctx) == 0 {
				t.Error("no fence")
			}
			if again, err := m.TryDo(t.Context(), func(context.Context) error { return disk }); again || err != nil {
				t.Errorf("TryDo of a held lock: %v, %v", again, err)
			}
			return disk
		})
		if !ran || !errors.Is(err, disk) {
			t.Errorf("TryDo: %v, %v", ran, err)
		}
		free(t, c, "x")
		never := func(context.Context) error { t.Error("it ran"); return nil }
		r.set(func(r *rig) {
			r.acquire = unreachable
		})
		if ran, err := m.TryDo(t.Context(), never); ran || !errors.Is(err, distlock.ErrUnavailable) {
			t.Errorf("TryDo without an answer: %v, %v", ran, err)
		}
		if ran, err := c.Mutex("").TryDo(t.Context(), never); ran || !errors.Is(err, distlock.ErrInvalid) {
			t.Errorf("TryDo of no name: %v, %v", ran, err)
		}
	})
}

// The context of f ends with the caller's.
func TestTryDoEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, memlock.New(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		ran, err := c.Mutex("x").TryDo(ctx, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !ran || !errors.Is(err, context.Canceled) {
			t.Errorf("TryDo: %v, %v", ran, err)
		}
		free(t, c, "x")
	})
}

// With MinHold, hosts whose clocks differ a little run a job once.
func TestTryDoOfAScheduledJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, runs := memlock.NewStore(), 0
		job := func(context.Context) error { runs++; return nil }
		for range 3 {
			for range 3 {
				expect.OK(t, expect.Err(client(t, store.Connect(), nil).Mutex("job", distlock.MinHold(time.Minute)).TryDo(t.Context(), job)))
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Hour)
		}
		expect.Equal(t, runs, 3, "runs")
	})
}
