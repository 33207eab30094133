package distlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
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

// recorded are the events of a client, each with its kind.
type recorded struct {
	mu     sync.Mutex
	kinds  []string
	events []distlock.Event
}

func (r *recorded) note(kind string) func(distlock.Event) {
	return func(e distlock.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kinds, r.events = append(r.kinds, kind), append(r.events, e)
	}
}

// last returns the last event of a kind.
func (r *recorded) last(t *testing.T, kind string) distlock.Event {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range slices.Backward(r.kinds) {
		if k == kind {
			return r.events[i]
		}
	}
	t.Fatalf("no event %s in %v", kind, r.kinds)
	return distlock.Event{}
}

func (r *recorded) observer() *distlock.Observer {
	return &distlock.Observer{
		Waiting: r.note("waiting"), GaveUp: r.note("gave up"), Refused: r.note("refused"), Granted: r.note("granted"),
		HandedOff: r.note("handed off"), Renewed: r.note("renewed"), Unanswered: r.note("unanswered"), Asked: r.note("asked"),
		Lost: r.note("lost"), Released: r.note("released"), Downgraded: r.note("downgraded"),
	}
}

type callKey struct{}

// calling returns a context that a test recognizes.
func calling(t *testing.T, name string) context.Context {
	return context.WithValue(t.Context(), callKey{}, name)
}

// An event has the context of its call. An event of a refusal names the holder in the way, without its
// Owner, whether that is this process or another.
func TestEventsOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		other := client(t, store.Connect(), &distlock.Options{Meta: map[string]string{"program": "backup"}})
		held := must.Get(other.Mutex("x").Lock(t.Context()))(t)
		var r recorded
		c := client(t, store.Connect(), &distlock.Options{Observer: r.observer(), Meta: map[string]string{"program": "shop"}})
		blockedBy := func(kind, program string, fence uint64) {
			t.Helper()
			e := r.last(t, kind)
			if e.Blocker == nil || e.Blocker.Owner != "" || e.Blocker.Meta["program"] != program || e.Blocker.Fence != fence {
				t.Errorf("%s: the blocker is %+v, want %s with fence %d", kind, e.Blocker, program, fence)
			}
			if e.Context.Value(callKey{}) != kind {
				t.Errorf("%s: the context is of %v", kind, e.Context.Value(callKey{}))
			}
		}
		must.Be(t, expect.Err(c.Mutex("x").TryLock(calling(t, "refused"))), distlock.ErrHeld)
		blockedBy("refused", "backup", held.Fence())
		ctx, cancel := context.WithTimeout(calling(t, "gave up"), time.Second)
		defer cancel()
		must.Be(t, expect.Err(c.Mutex("x").Lock(ctx)), context.DeadlineExceeded)
		blockedBy("gave up", "backup", held.Fence())

		first := waiter(t, calling(t, "waiting"), c.Mutex("x"))
		synctest.Wait()
		blockedBy("waiting", "backup", held.Fence())
		mustUnlock(t, held)
		mine := <-first
		if e := r.last(t, "granted"); e.Fence != mine.Fence() || e.Context.Value(callKey{}) != "waiting" {
			t.Errorf("granted: %+v", e)
		}
		second := waiter(t, calling(t, "waiting"), c.Mutex("x"))
		synctest.Wait()
		blockedBy("waiting", "shop", mine.Fence())
		must.Be(t, expect.Err(c.Mutex("x").TryLock(calling(t, "refused"))), distlock.ErrHeld)
		blockedBy("refused", "shop", mine.Fence())
		must.OK(t, mine.Unlock(calling(t, "unlock")))
		if e := r.last(t, "released"); e.Context.Value(callKey{}) != "unlock" {
			t.Errorf("released: %+v", e)
		}
		mustUnlock(t, <-second)
	})
}

// balance returns how many holds were reported as begun and not yet as ended.
func (r *recorded) balance() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.kinds {
		switch k {
		case "granted", "handed off":
			n++
		case "released", "lost":
			n--
		}
	}
	return n
}

// lateContext is a context whose end is noticed only by its Err.
type lateContext struct{ ended atomic.Bool }

func (*lateContext) Deadline() (_ time.Time, _ bool) { return }
func (*lateContext) Done() <-chan struct{}           { return nil }
func (*lateContext) Value(any) any                   { return nil }
func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A hold that is lost before Lock returns is reported in that order, and no caller gets its lease: others may hold by then.
func TestLostAsItIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorded
		b := newRig()
		first := true
		b.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			g, err := next(ctx, req)
			if first {
				first = false
				err = errors.Join(err, b.Backend.Release(ctx, req.Hold))
				req.OnLost()
			}
			return g, err
		}
		c := client(t, b, &distlock.Options{Observer: r.observer()})
		lease := mustLock(t, c.Mutex("x"))
		synctest.Wait()
		if want := []string{"granted", "lost", "granted"}; !slices.Equal(r.kinds, want) || lease.Err() != nil {
			t.Errorf("got %v, want %v; %v", r.kinds, want, lease.Err())
		}
		mustUnlock(t, lease)
		first = true
		if _, err := c.Mutex("x").TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("TryLock: %v, want ErrUnavailable", err)
		}
	})
}

// closing is a rig whose watches call a function when they end.
type closing struct {
	*rig
	closed func()
}

func (b *closing) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w, err := b.rig.Watch(ctx, r)
	next := w.Close
	w.Close = func() { next(); b.closed() }
	return w, err
}

// So is a hold that is lost between its grant and the report of that.
func TestLostBeforeTheGrantIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorded
		store := memlock.NewStore()
		var request driver.Request
		b := newRig()
		b.Backend = store.Connect()
		b.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			request = req
			return next(ctx, req)
		}
		var once sync.Once
		c := client(t, &closing{b, func() {
			once.Do(func() {
				expect.OK(t, b.Backend.Release(t.Context(), request.Hold))
				request.OnLost()
				synctest.Wait()
			})
		}}, &distlock.Options{Observer: r.observer()})
		held := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		time.AfterFunc(time.Second, func() { mustUnlock(t, held) })
		mustUnlock(t, mustLock(t, c.Mutex("x")))
		if want := []string{"waiting", "granted", "lost", "granted", "released"}; !slices.Equal(r.kinds, want) {
			t.Errorf("got %v, want %v", r.kinds, want)
		}
	})
}

// A lease that is lost while it is handed off, to a caller that does not get it, is reported as lost once, and not as
// released. What the backend may have of it is released once.
func TestLostAsItIsHandedOff(t *testing.T) {
	for what, test := range map[string]struct {
		lose     func(b *rig, held driver.Request)
		releases int64
	}{
		"for sure": {func(b *rig, held driver.Request) {
			_ = b.Backend.Release(context.Background(), held.Hold)
			held.OnLost()
		}, 0},
		"without proof": {func(b *rig, _ driver.Request) {
			b.set(func(r *rig) { r.renew = blackHole })
			time.Sleep(ttl)
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r recorded
				var held driver.Request
				b := newRig()
				b.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					held = req
					return next(ctx, req)
				}
				o := r.observer()
				o.HandedOff = func(distlock.Event) {
					synctest.Wait() // the Unlock reports its end on a goroutine of its own
					test.lose(b, held)
					synctest.Wait()
					panic("an observer")
				}
				c := client(t, b, &distlock.Options{HandoffWindow: time.Hour, Observer: o})
				first := mustLock(t, c.Mutex("x"))
				time.AfterFunc(time.Second, func() { mustUnlock(t, first) })
				if !panics(func() { mustLock(t, c.Mutex("x")) }) {
					t.Fatal("the panic was swallowed")
				}
				time.Sleep(ttl)
				ends := slices.DeleteFunc(slices.Clone(r.kinds), func(kind string) bool { return kind == "unanswered" })
				if want := []string{"granted", "waiting", "released", "lost"}; !slices.Equal(ends, want) || b.releases.Load() != test.releases {
					t.Errorf("got %v and %d releases, want %v and %d", ends, b.releases.Load(), want, test.releases)
				}
				free(t, c, "x")
			})
		})
	}
}

// A hold that was reported as begun is reported as ended once, however it ends.
func TestEachHoldIsReportedOnce(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *distlock.Client, held *distlock.Lease){
		"close": func(t *testing.T, c *distlock.Client, held *distlock.Lease) {
			expect.OK(t, c.Close())
		},
		"unlock": func(t *testing.T, c *distlock.Client, held *distlock.Lease) { mustUnlock(t, held) },
		"a waiter gives up as it is handed the lock": func(t *testing.T, c *distlock.Client, held *distlock.Lease) {
			var ctx lateContext
			refused := make(chan error, 1)
			go func() {
				_, err := c.Mutex("x").Lock(&ctx)
				refused <- err
			}()
			synctest.Wait()
			ctx.ended.Store(true)
			mustUnlock(t, held)
			if err := <-refused; !errors.Is(err, context.Canceled) || !errors.Is(err, distlock.ErrHeld) {
				t.Errorf("got %v, want that it was held and canceled", err)
			}
		},
		"unlock beside a loss": func(t *testing.T, c *distlock.Client, held *distlock.Lease) {
			info := must.Get(c.Inspect(t.Context(), "x"))(t)
			var both sync.WaitGroup
			both.Go(func() { _ = c.ForceUnlock(t.Context(), info) })
			both.Go(func() { _ = held.Unlock(t.Context()) })
			both.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					var r recorded
					c := client(t, newRig(), &distlock.Options{HandoffWindow: time.Hour, Observer: r.observer()})
					held := mustLock(t, c.Mutex("x"))
					must.Equal(t, r.balance(), 1, r.kinds)
					end(t, c, held)
					synctest.Wait()
					must.Equal(t, r.balance(), 0, "holds are left", r.kinds)
				})
			}
		})
	}
}

// Renewals say how much trust was left, which falls while they have no answer. A loss has the context of Lock.
func TestEventsOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen recorded
		r := newRig()
		c := client(t, r, &distlock.Options{TTL: 30 * time.Second, Margin: 3 * time.Second, Observer: seen.observer()})
		lease := must.Get(c.Mutex("x").Lock(calling(t, "lock")))(t)
		time.Sleep(11 * time.Second)
		if e := seen.last(t, "renewed"); e.Left != 17*time.Second || e.Context == nil {
			t.Errorf("renewed: %+v, want 17 s left", e)
		}
		r.set(func(r *rig) {
			r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error { return allErrors(holds, errNetwork) }
		})
		time.Sleep(10 * time.Second)
		first := seen.last(t, "unanswered").Left
		time.Sleep(5 * time.Second)
		if e := seen.last(t, "unanswered"); e.Left >= first || e.Left <= 0 || e.Err == nil {
			t.Errorf("unanswered: %+v, and %v was left before", e, first)
		}
		<-lease.Context().Done()
		synctest.Wait()
		if e := seen.last(t, "lost"); e.Context.Value(callKey{}) != "lock" || e.Fence != lease.Fence() {
			t.Errorf("lost: %+v", e)
		}
	})
}

// A holder that is asked to release is reported once.
func TestEventAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen recorded
		c := client(t, memlock.New(), &distlock.Options{Observer: seen.observer()})
		lease := must.Get(c.Mutex("x", distlock.Revocable(func(l *distlock.Lease) {})).Lock(calling(t, "lock")))(t)
		info := must.Get(c.Inspect(t.Context(), "x"))(t)
		for range 2 {
			must.OK(t, c.Revoke(t.Context(), info))
			synctest.Wait()
		}
		if e := seen.last(t, "asked"); e.Fence != lease.Fence() || e.Context.Value(callKey{}) != "lock" {
			t.Errorf("asked: %+v", e)
		}
		expect.Equal(t, strings.Count(strings.Join(seen.kinds, " "), "asked"), 1, "reported")
	})
}

// Observers are notified in their order. One that none of them has is not called.
func TestObservers(t *testing.T) {
	var log []string
	note := func(what string) func(distlock.Event) { return func(distlock.Event) { log = append(log, what) } }
	joined := distlock.Observers(
		&distlock.Observer{Granted: note("a granted")}, nil,
		&distlock.Observer{Granted: note("b granted"), Released: note("b released")},
	)
	if joined.Waiting != nil || joined.Leaked != nil {
		t.Error("a field that none has is set")
	}
	c := client(t, memlock.New(), &distlock.Options{Observer: joined})
	mustUnlock(t, mustLock(t, c.Mutex("x")))
	expect.Equal(t, fmt.Sprint(log), "[a granted b granted b released]")
}

// A log has a level for each event, and neither Owners nor what an Owner is found by.
func TestLogTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r := newRig()
		c := client(t, r, &distlock.Options{Observer: distlock.LogTo(log)})
		lease := mustLock(t, c.Mutex("x"))
		second := waiter(t, t.Context(), c.Mutex("x"))
		must.Be(t, expect.Err(c.Mutex("x").TryLock(t.Context())), distlock.ErrHeld)
		time.Sleep(2 * time.Second)
		mustUnlock(t, lease)
		lease = <-second
		r.set(func(r *rig) {
			r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error { return allErrors(holds, errNetwork) }
		})
		<-lease.Context().Done()
		synctest.Wait()
		text := b.String()
		for _, want := range []string{
			`level=DEBUG msg="lock granted" lock=x mode=exclusive fence=`, `level=DEBUG msg="waiting for a lock" lock=x`,
			`level=DEBUG msg="lock refused" lock=x`, "blocker=", `level=WARN msg="lock `, "waited=2.",
			`level=WARN msg="no answer about a lock; trying again" lock=x mode=exclusive op=renew`, `error="connection reset"`, `level=ERROR msg="lock lost" lock=x`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if strings.Contains(text, lease.Owner()) {
			t.Errorf("an Owner is in the log:\n%s", text)
		}
	})
}
