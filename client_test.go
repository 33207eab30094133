package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A wait that is cut short matches the context's error and the last answer.
func TestWaitCutShort(t *testing.T) {
	answers := map[string]struct {
		acquire func(context.Context, driver.Request, acquirer) (driver.Grant, error)
		want    error
	}{
		"held": {nil, distlock.ErrHeld},
		"unavailable": {func(context.Context, driver.Request, acquirer) (driver.Grant, error) {
			return driver.Grant{}, errNetwork
		}, distlock.ErrUnavailable},
		"black hole": {func(ctx context.Context, _ driver.Request, _ acquirer) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		}, distlock.ErrUnavailable},
	}
	for name, a := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
				c := client(t, &rig{Backend: store.Connect(), acquire: a.acquire}, nil)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				second := waiter(t, ctx, c.Mutex("x"))
				start := time.Now()
				_, err := c.Mutex("x").Lock(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, a.want) {
					t.Errorf("Lock: %v, want the deadline and %v", err, a.want)
				}
				within(t, "gave up", time.Since(start), time.Minute, 0)
				<-second
				mustUnlock(t, holder)
			})
		})
	}
}

func TestCauseOfACutShortWait(t *testing.T) {
	c := client(t, memlock.New(), nil)
	held := mustLock(t, c.Mutex("x"))
	errShutdown := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errShutdown)
	if _, err := c.Mutex("x").Lock(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, errShutdown) {
		t.Errorf("Lock: %v, want the context's error and its cause", err)
	}
	mustUnlock(t, held)
}

// A backend that is down while waiting does not end the wait.
func TestWaitThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(context.Context, driver.Request, acquirer) (driver.Grant, error) {
			return driver.Grant{}, errNetwork
		}
		c := client(t, r, nil)
		got := waiter(t, t.Context(), c.Mutex("x"))
		if _, err := c.Mutex("y").TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) || !errors.Is(err, errNetwork) {
			t.Errorf("try: %v, want ErrUnavailable", err)
		}
		expect.Be(t, expect.Err(c.Semaphore("z", 1).TryAcquire(t.Context())), distlock.ErrUnavailable, "try")
		time.Sleep(10 * time.Minute)
		start := time.Now()
		r.set(func(r *rig) { r.acquire = nil })
		mustUnlock(t, <-got)
		within(t, "lock after the outage", time.Since(start), 0, 2*time.Second)
	})
}

// A grant that arrives after its own end does not count. The same Owner tries again.
func TestGrantExpiredOnArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		owners := map[string]bool{}
		late := true
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			owners[req.Owner] = true
			g, err := next(ctx, req)
			if late {
				late = false
				time.Sleep(40 * time.Second)
			}
			return g, err
		}
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		if lease.Err() != nil || len(owners) != 1 {
			t.Errorf("Err %v, %d owners", lease.Err(), len(owners))
		}
		mustUnlock(t, lease)

		late = true
		expect.Be(t, expect.Err(c.Mutex("y").TryLock(t.Context())), distlock.ErrUnavailable, "try")
		time.Sleep(time.Second)
		free(t, c, "y")
	})
}

// A grant that lands after its caller has gone is released.
func TestGrantAfterTheCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			g, err := next(ctx, req)
			<-ctx.Done()
			return g, err
		}
		c := client(t, r, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.Be(t, expect.Err(c.Mutex("x").Lock(ctx)), context.DeadlineExceeded, "Lock")
		time.Sleep(time.Second)
		free(t, c, "x")
	})
}

// Polling backs off, and finds the lock soon after it is free.
func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		r := &rig{Backend: store.Connect(), noWatch: true}
		got := waiter(t, t.Context(), client(t, r, nil).Mutex("x"))
		time.Sleep(10 * time.Second)
		if n := r.acquires.Load(); n > 1200 {
			t.Errorf("%d polls in 10 s", n)
		}
		start := time.Now()
		mustUnlock(t, holder)
		mustUnlock(t, <-got)
		within(t, "lock", time.Since(start), 0, 30*time.Millisecond)
	})
}

// A dead holder's lock is found by its remaining time, not by the bound of the wait.
func TestDeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		dead := driver.Request{Hold: driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 1300 * time.Millisecond}, Fences: 1}
		must.Get(store.Connect().Acquire(t.Context(), dead))(t)
		start := time.Now()
		mustUnlock(t, mustLock(t, client(t, store.Connect(), nil).Mutex("x")))
		within(t, "lock", time.Since(start), 1300*time.Millisecond, 60*time.Millisecond)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		other := client(t, store.Connect(), nil)
		theirs := mustLock(t, other.Mutex("theirs"))
		c := client(t, r, nil)
		lease := mustLock(t, c.Mutex("x"))
		ctx := lease.Context()
		fixed := mustLock(t, c.Mutex("fixed", distlock.WithoutRenewal()))
		wait := func(m locker) <-chan error {
			failed := make(chan error, 1)
			go func() {
				_, err := m.Lock(t.Context())
				failed <- err
			}()
			synctest.Wait()
			return failed
		}
		waits := []<-chan error{wait(c.Mutex("x")), wait(c.Mutex("x")), wait(c.Mutex("theirs")), wait(c.Mutex("theirs")), wait(c.Mutex("theirs", distlock.Fair()))}
		start := time.Now()
		expect.OK(t, c.Close(), "Close")
		within(t, "Close", time.Since(start), 0, 0)
		for i, w := range waits {
			expect.Be(t, <-w, distlock.ErrClosed, "waiter", i)
		}
		if !errors.Is(context.Cause(ctx), distlock.ErrClosed) || !errors.Is(fixed.Err(), distlock.ErrClosed) {
			t.Errorf("leases: %v, %v, want ErrClosed", context.Cause(ctx), fixed.Err())
		}
		expect.Be(t, lease.Unlock(t.Context()), distlock.ErrClosed, "Unlock")
		expect.Be(t, expect.Err(c.Mutex("x").Lock(t.Context())), distlock.ErrClosed, "Lock")
		expect.Be(t, expect.Err(c.Inspect(t.Context(), "x")), distlock.ErrClosed, "Inspect")
		if err := c.Close(); err != nil || r.closes.Load() != 1 {
			t.Errorf("second Close: %v; backend closed %d times", err, r.closes.Load())
		}
		free(t, other, "x")
		free(t, other, "fixed")
		mustUnlock(t, theirs)
		free(t, other, "theirs")
	})
}

// Close is bounded even if the backend does not answer, and reports the remaining locks.
func TestCloseOfADeadBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := must.Get(distlock.New(r, nil))(t)
		for i := range 200 {
			mustLock(t, c.Mutex(fmt.Sprint(i)))
		}
		r.set(func(r *rig) {
			r.renew = blackHole
			r.release = func(ctx context.Context, _ driver.Hold, _ releaser) error {
				<-ctx.Done()
				return ctx.Err()
			}
			r.acquire = func(ctx context.Context, _ driver.Request, _ acquirer) (driver.Grant, error) {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		got := make(chan error, 1)
		go func() {
			_, err := c.Mutex("waits").Lock(context.Background())
			got <- err
		}()
		time.Sleep(10500 * time.Millisecond) // renewals and an attempt are in flight
		start := time.Now()
		err := c.Close()
		if err == nil || !strings.Contains(err.Error(), "200 locks") {
			t.Errorf("Close: %v, want it to report 200 locks", err)
		}
		within(t, "Close", time.Since(start), 0, 15*time.Second)
		expect.Be(t, <-got, distlock.ErrClosed, "waiter")
		time.Sleep(2 * time.Minute) // attempts in progress give up with the TTL
	})
}

func TestBadNamesAndOptions(t *testing.T) {
	r := newRig()
	r.caps = func(c driver.Caps) driver.Caps {
		c.MinTTL, c.MaxTTL, c.Queueing = time.Second, time.Hour, driver.QueueNever
		c.Modes = driver.Modes(driver.Exclusive, driver.Counted)
		return c
	}
	c := client(t, r, nil)
	cases := map[string]struct {
		m    locker
		kind error
		says string
	}{
		"empty name":        {c.Mutex(""), distlock.ErrInvalid, "empty"},
		"NUL":               {c.Mutex("a\x00b"), distlock.ErrInvalid, "NUL"},
		"not UTF-8":         {c.Mutex("a\xffb"), distlock.ErrInvalid, "UTF-8"},
		"metadata":          {c.Mutex("a", distlock.WithMeta(map[string]string{"note": "a\xffb"})), distlock.ErrInvalid, `"note" is not UTF-8`},
		"TTL zero":          {c.Mutex("x", distlock.WithTTL(0)), distlock.ErrInvalid, "TTL 0s"},
		"TTL too short":     {c.Mutex("x", distlock.WithTTL(time.Millisecond)), distlock.ErrInvalid, "minimum"},
		"TTL too long":      {c.Mutex("x", distlock.WithTTL(2*time.Hour)), distlock.ErrInvalid, "maximum"},
		"MaxHold zero":      {c.Mutex("x", distlock.MaxHold(0)), distlock.ErrInvalid, "MaxHold"},
		"MinHold > TTL":     {c.Mutex("x", distlock.MinHold(2*time.Second), distlock.WithTTL(time.Second), distlock.WithoutRenewal()), distlock.ErrInvalid, "MinHold"},
		"MinHold negative":  {c.Mutex("x", distlock.MinHold(-1)), distlock.ErrInvalid, "MinHold"},
		"MinHold > MaxHold": {c.Mutex("x", distlock.MinHold(2*time.Second), distlock.MaxHold(time.Second)), distlock.ErrInvalid, "MinHold"},
		"fair":              {c.Mutex("x", distlock.Fair()), distlock.ErrUnsupported, "fair"},
		"mode":              {c.RWMutex("x"), distlock.ErrUnsupported, "write"},
	}
	for name, tc := range cases {
		_, err := tc.m.Lock(t.Context())
		e := (*distlock.Error)(nil)
		if !errors.Is(err, tc.kind) || !errors.As(err, &e) || e.Kind != tc.kind || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, tc.kind, tc.says)
		}
	}
	expect.Be(t, expect.Err(c.Semaphore("x", 0).TryAcquire(t.Context())), distlock.ErrInvalid, "no permits")
	expect.Equal(t, r.acquires.Load(), 0, "invalid values reached the backend")
}

func TestBadClientOptions(t *testing.T) {
	for name, o := range map[string]distlock.Options{
		"margin":          {Margin: 30 * time.Second},
		"negative margin": {Margin: -1},
		"negative TTL":    {TTL: -1},
		"hand-off":        {HandoffMax: -2},
		"window":          {HandoffWindow: -1},
		"call timeout":    {CallTimeout: -1},
	} {
		expect.Be(t, expect.Err(distlock.New(memlock.New(), &o)), distlock.ErrInvalid, name)
	}
	expect.Be(t, expect.Err(distlock.New(nil, nil)), distlock.ErrInvalid, "nil backend")
}

func TestOpen(t *testing.T) {
	cases := map[string]string{
		"redis://u:s3cret@h:1/0":         "backend/redislock",
		"gopher://u:s3cret@h/":           "unknown URL scheme",
		"mem:?colour=s3cret":             "colour",
		"redis://u:s3cret@h:port/":       "malformed",
		"mem://u:s3 cret@%zz/":           "malformed",
		"u:s3cret@localhost":             "scheme",
		"":                               "no scheme",
		"redis://u:s3/cret@localhost:1/": "malformed",
	}
	for url, says := range cases {
		_, err := distlock.Open(t.Context(), url, nil)
		if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", url, err, says)
		}
		if url != "mem:?colour=s3cret" && strings.Contains(fmt.Sprint(err), "cret") {
			t.Errorf("%s: the error shows a password: %v", url, err)
		}
	}
	expect.Be(t, expect.Err(distlock.Open(t.Context(), "mem:", &distlock.Options{TTL: -1})), distlock.ErrInvalid, "a TTL of -1")
	c := must.Get(distlock.Open(t.Context(), "mem:", nil))(t)
	defer c.Close()
	mustUnlock(t, mustLock(t, c.Mutex("x")))
}

func TestInspectListBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), nil), client(t, store.Connect(), &distlock.Options{Meta: map[string]string{"host": "h"}})
		lease := mustLock(t, other.Mutex("jobs/a", distlock.WithMeta(map[string]string{"why": "test"})))
		time.Sleep(3 * time.Second)
		info, err := c.Inspect(t.Context(), "jobs/a")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		h := info.Holders[0]
		if h.Fence != lease.Fence() || h.Owner != lease.Owner() || h.Held != 3*time.Second || h.Left != 27*time.Second ||
			h.Meta["host"] != "h" || h.Meta["why"] != "test" || h.Meta["pid"] == "" || h.Meta["program"] == "" {
			t.Errorf("%+v", h)
		}
		var names []string
		for name, err := range c.List(t.Context(), "jobs/") {
			must.OK(t, err)
			names = append(names, name)
		}
		if len(names) != 1 || names[0] != "jobs/a" {
			t.Errorf("List: %v", names)
		}
		info.Holders[0].Foreign = true
		if err := c.ForceUnlock(t.Context(), info); !errors.Is(err, distlock.ErrInvalid) || lease.Err() != nil {
			t.Errorf("ForceUnlock of a foreign holder: %v, want ErrInvalid", err)
		}
		info.Holders[0].Foreign = false
		expect.OK(t, c.ForceUnlock(t.Context(), info), "ForceUnlock")
		successor := mustLock(t, c.Mutex("jobs/a"))
		expect.Be(t, c.ForceUnlock(t.Context(), info), distlock.ErrLost, "ForceUnlock of a hold that is gone")
		time.Sleep(time.Minute)
		if successor.Err() != nil {
			t.Errorf("ForceUnlock hit the successor: %v", successor.Err())
		}
		mustUnlock(t, successor)
		expect.Be(t, c.ForceUnlock(t.Context(), distlock.Info{Name: "jobs/a"}), distlock.ErrLost, "ForceUnlock without holders")
	})
}

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		note := func(what string) func(distlock.Event) {
			return func(e distlock.Event) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, fmt.Sprintf("%s %s waited %v held %v %v", what, e.Name, e.Waited, e.Held, e.Err != nil))
			}
		}
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour, Observer: &distlock.Observer{
			Waiting: note("waiting"), GaveUp: note("gave up"), Granted: note("granted"), HandedOff: note("handed off"),
			Renewed: note("renewed"), Unanswered: note("unanswered"), Lost: note("lost"), Released: note("released"),
		}})
		m := c.Mutex("x")
		first := mustLock(t, m)
		second := waiter(t, t.Context(), m)
		time.Sleep(15 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		third := waiter(t, ctx, m)
		cancel()
		<-third
		mustUnlock(t, first)
		lease := <-second
		r.set(func(r *rig) {
			r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error { return allErrors(holds, errNetwork) }
		})
		<-lease.Context().Done()
		synctest.Wait()
		want := []string{
			"granted x waited 0s held 0s false",
			"waiting x waited 0s held 0s false",
			"renewed x waited 0s held 0s false",
			"waiting x waited 0s held 0s false",
			"gave up x waited 0s held 0s true",
			"released x waited 0s held 15s false",
			"handed off x waited 15s held 0s false",
			"unanswered x waited 0s held 0s true",
		}
		if len(log) > 6 && log[5] == want[6] {
			log[5], log[6] = log[6], log[5] // reported by two goroutines
		}
		for i, w := range want {
			if i >= len(log) || log[i] != w {
				t.Fatalf("event %d: want %q in\n%s", i, w, strings.Join(log, "\n"))
			}
		}
		expect.Equal(t, log[len(log)-1], "lost x waited 0s held 24s true", "last event")
	})
}

// ForceUnlock ends the context of a holder in the same client at once.
func TestBreakOfOnesOwnHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, newRig(), nil)
		lease := mustLock(t, c.Mutex("x"))
		info := must.Get(c.Inspect(t.Context(), "x"))(t)
		must.OK(t, c.ForceUnlock(t.Context(), info))
		expect.Be(t, lease.Err(), distlock.ErrLost, "the broken lease")
		mustUnlock(t, mustLock(t, c.Mutex("x")))
	})
}
