package distlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/distlocktest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestHoldForDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := distlocktest.New(t)
		start := time.Now()
		time.AfterFunc(48*time.Hour, fake.Hold("x"))
		lease, err := fake.Client.Mutex("x").Lock(t.Context())
		if err != nil || time.Since(start) < 48*time.Hour {
			t.Fatalf("%v, after %v", err, time.Since(start))
		}
		expect.OK(t, lease.Unlock(t.Context()))
	})
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := distlocktest.New(t)
		m := fake.Client.Mutex("order:555")
		release := fake.Hold("order:555")
		expect.Be(t, expect.Err(m.TryLock(t.Context())), distlock.ErrHeld, "a held lock")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Lock(ctx); !errors.Is(err, distlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for it: got %v; want both errors", err)
		}
		time.AfterFunc(time.Minute, release)
		began := time.Now()
		if err := m.Do(t.Context(), func(context.Context) error { return nil }); err != nil || time.Since(began) < time.Minute {
			t.Errorf("a wait for its release: %v after %v", err, time.Since(began))
		}
	})
}

func TestLose(t *testing.T) {
	fake := distlocktest.New(t)
	for range 2 { // the second after a release
		err := fake.Client.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			fake.Lose("m")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		expect.Be(t, err, distlock.ErrLost)
	}
}

// A lease has ended when Lose returns, so that code which looks before it writes does not write.
func TestLoseWaitsForTheEndOfLeases(t *testing.T) {
	lost := 0
	fake := distlocktest.NewWith(t, &distlock.Options{Observer: &distlock.Observer{Lost: func(distlock.Event) { lost++ }}})
	for range 100 {
		lease := must.Get(fake.Client.Mutex("m").Lock(t.Context()))(t)
		fake.Lose("m")
		if ctx := lease.Context(); lease.Err() == nil || ctx.Err() == nil {
			t.Fatalf("after Lose: %v, %v", lease.Err(), ctx.Err())
		}
	}
	if lost != 100 {
		t.Errorf("the test's own Observer saw %d losses", lost)
	}
}

func TestDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := distlocktest.NewWith(t, &distlock.Options{TTL: 30 * time.Second})
		m := fake.Client.Mutex("m")
		lease := must.Get(m.Lock(t.Context()))(t)
		fake.Down()
		expect.Be(t, expect.Err(fake.Client.Mutex("n").TryLock(t.Context())), distlock.ErrUnavailable, "a try")
		<-lease.Context().Done()
		expect.Be(t, lease.Err(), distlock.ErrLost, "a lease that was not renewed")
		time.AfterFunc(time.Minute, fake.Up)
		expect.OK(t, m.Do(t.Context(), func(context.Context) error { return nil }), "after the outage")
	})
}

// recorder is a test that fails.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

// A test whose expectation is wrong learns of it.
func TestWrongExpectations(t *testing.T) {
	for name, f := range map[string]func(*distlocktest.Fake){
		"Lose of a free lock": func(f *distlocktest.Fake) { f.Lose("free") },
		"Hold of a held lock": func(f *distlocktest.Fake) { f.Hold("held"); f.Hold("held") },
	} {
		r := &recorder{TB: t}
		func() {
			defer func() { _ = recover() }()
			f(distlocktest.New(r))
		}()
		if r.failed == "" {
			t.Errorf("%s did not fail the test", name)
		}
	}
}

// transfer is code under test: it takes a lock and stops when the lock is lost.
func transfer(ctx context.Context, m *distlock.Mutex, step func()) error {
	return m.Do(ctx, func(ctx context.Context) error {
		step()
		return context.Cause(ctx)
	})
}

func ExampleFake() {
	t := &testing.T{} // yours
	fake := distlocktest.New(t)
	err := transfer(context.Background(), fake.Client.Mutex("account:1"), func() { fake.Lose("account:1") })
	fmt.Println(errors.Is(err, distlock.ErrLost))
	// Output: true
}

// A lock that MinHold keeps, or that was detached, is lost at once: there is no lease whose end could be waited for.
func TestLoseWithoutALease(t *testing.T) {
	for what, end := range map[string]func(*distlock.Lease) error{
		"MinHold":  func(l *distlock.Lease) error { return l.Unlock(context.Background()) },
		"detached": func(l *distlock.Lease) error { _, err := l.Detach(context.Background()); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := distlocktest.New(t)
			lease, err := f.Client.Mutex("x", distlock.MinHold(time.Minute)).Lock(context.Background())
			if err == nil {
				err = end(lease)
			}
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if f.Lose("x"); time.Since(began) > 0 {
				t.Errorf("%s: Lose took %v", what, time.Since(began))
			}
			again, err := f.Client.Mutex("x").TryLock(context.Background())
			if err != nil {
				t.Fatalf("%s: after Lose: %v", what, err)
			}
			if f.Lose("x"); again.Err() == nil {
				t.Errorf("%s: the next lease is not lost", what)
			}
		})
	}
}
