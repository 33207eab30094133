// Package locktest has what tests of backends do again and again. A failed step ends the test.
package locktest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// Patience bounds every wait. Each wait takes seconds at most, on a busy machine too.
const Patience = 2 * time.Minute

// Patient returns options with which a call that is not repeated succeeds on a busy machine, and no lease is lost there.
func Patient() *distlock.Options {
	return &distlock.Options{TTL: 3 * time.Minute, CallTimeout: time.Minute}
}

// Acquire returns the grant of a request.
func Acquire(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q, %v: %v", r.Name, r.Mode, err)
	}
	return g
}

// Release releases the hold of a request.
func Release(t testing.TB, b driver.Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Fatalf("release %q, %v: %v", r.Name, r.Mode, err)
	}
}

// Refused returns the error of a request, which must match want.
func Refused(t testing.TB, b driver.Backend, r driver.Request, want error) error {
	t.Helper()
	_, err := b.Acquire(t.Context(), r)
	if !errors.Is(err, want) {
		t.Fatalf("acquire %q, %v: %v, want %v", r.Name, r.Mode, err, want)
	}
	return err
}

// Held returns who holds the lock that a request is refused.
func Held(t testing.TB, b driver.Backend, r driver.Request) *driver.HeldError {
	t.Helper()
	var held *driver.HeldError
	if err := Refused(t, b, r, driver.ErrHeld); !errors.As(err, &held) {
		t.Fatalf("acquire %q: %v does not say who holds it", r.Name, err)
	}
	return held
}

// Watch arms a watch, which ends with the test if the test does not end it. Backends want one Close only. A busy machine may be
// too slow to confirm a watch in the backend's time: it is armed again, as the core does.
func Watch(t testing.TB, b driver.Watcher, r driver.Request) driver.Watch {
	t.Helper()
	w, err := b.Watch(t.Context(), r)
	for end := time.Now().Add(Patience); err != nil && !errors.Is(err, driver.ErrSkip) && !driver.Final(err) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		w, err = b.Watch(t.Context(), r)
	}
	if err != nil {
		t.Fatalf("watch %q: %v", r.Name, err)
	}
	w.Close = sync.OnceFunc(w.Close)
	t.Cleanup(w.Close)
	return w
}

// Signalled waits until a watch signals. It says why that must happen if it does not.
func Signalled(t testing.TB, w driver.Watch, why string) {
	t.Helper()
	select {
	case <-w.Ready:
	case <-time.After(Patience):
		t.Fatalf("no signal: %s", why)
	}
}

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never so: %s", what)
		}
	}
}

// Soon returns a context that bounds a call which must end by itself.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Stalling is a server that can be stopped.
type Stalling interface {
	Pause()
	Resume()
}

// StalledServer wants calls to return when their contexts end. Their commands run later, and a release that is sent
// afterwards runs after them.
func StalledServer(t *testing.T, b driver.Backend, srv Stalling, request func() driver.Request) {
	for _, end := range []string{"deadline", "cancel"} {
		// A busy machine may need longer until the command is sent.
		for d := 50 * time.Millisecond; !landedBeforeItsRelease(t, b, srv, request(), end, d); d *= 2 {
			if d > 10*time.Second {
				t.Errorf("%s: no lock that was acquired late could be released", end)
				break
			}
		}
	}
}

// landedBeforeItsRelease makes an attempt at a server that is stopped, gives it up after a time, and releases it. It reports
// whether the release has found the lock. Whether it has or not, the lock must be free afterwards.
func landedBeforeItsRelease(t *testing.T, b driver.Backend, srv Stalling, r driver.Request, end string, after time.Duration) bool {
	t.Helper()
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	if end == "cancel" {
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
	}
	defer cancel()
	if _, err := b.Acquire(ctx, r); !errors.Is(err, ctx.Err()) {
		t.Errorf("acquire: %v, want %v", err, ctx.Err())
	}
	released := make(chan error)
	go func() { released <- b.Release(t.Context(), r.Hold) }()
	srv.Resume()
	err := <-released
	if err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("release of a lock that was acquired late: %v", err)
	}
	r.Owner = driver.NewOwner()
	Acquire(t, b, r)
	return err == nil
}

// StalledServerAndOthers lets some callers give up. The others on the same connection must get their answers all the same.
func StalledServerAndOthers(t *testing.T, b driver.Backend, srv Stalling, request func() driver.Request) {
	srv.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	var gaveUp, waited sync.WaitGroup
	for range 10 {
		gaveUp.Go(func() {
			if _, err := b.Acquire(ctx, request()); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
		waited.Go(func() {
			if _, err := b.Acquire(t.Context(), request()); err != nil {
				t.Errorf("waiting: %v", err)
			}
		})
	}
	time.AfterFunc(30*time.Millisecond, cancel)
	gaveUp.Wait()
	srv.Resume()
	waited.Wait()
}
