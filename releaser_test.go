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
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// outage makes the backend of r unreachable. With landing, attempts still take the lock, but their
// answers are lost.
func outage(r *rig, landing bool, err error) {
	r.set(func(r *rig) {
		acquire := r.acquire
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if landing && acquire != nil {
				acquire(ctx, req, next)
			} else if landing {
				next(ctx, req)
			}
			return driver.Grant{}, err
		}
		r.release = func(context.Context, driver.Hold, releaser) error { return err }
	})
}

// ofEachLife runs a test on a backend whose holds end by their TTL, and on one whose holds
// last as long as its session.
func ofEachLife(t *testing.T, test func(t *testing.T, store *memlock.Store, r *rig)) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprintf("session %v", session), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				if session {
					test(t, store, newSession(store))
					return
				}
				test(t, store, &rig{Backend: store.Connect()})
			})
		})
	}
}

// try makes n tries at locks of different names, in 20 seconds, and returns the greatest
// number of goroutines that it saw, less the number before.
func try(t *testing.T, c *distlock.Client, n int) int {
	const steps = 200
	before, most := testkit.Goroutines(), 0
	for i := range n {
		must.Be(t, expect.Err(c.Mutex(fmt.Sprint(i)).TryLock(t.Context())), distlock.ErrUnavailable, "TryLock")
		if i%(n/steps) == 0 {
			most = max(most, testkit.Goroutines()-before)
			time.Sleep(20 * time.Second / steps)
		}
	}
	return most
}

const (
	manyTries      = 20_000
	someTries      = 2_000
	manyGoroutines = 100 // as many as a client may have for its releases
)

// allFree fails if anything is held or waited for.
func allFree(t *testing.T, store *memlock.Store) {
	t.Helper()
	left := 0
	for range client(t, store.Connect(), nil).List(t.Context(), "") {
		left++
	}
	if left > 0 {
		t.Errorf("%d locks are not free", left)
	}
}

// Attempts that were not sent need no release.
func TestNothingSentNeedsNoRelease(t *testing.T)     { nothingSent(t, someTries) }
func TestLongNothingSentNeedsNoRelease(t *testing.T) { nothingSent(t, manyTries) }

func nothingSent(t *testing.T, tries int) {
	ofEachLife(t, func(t *testing.T, _ *memlock.Store, r *rig) {
		outage(r, false, driver.Unsent(errNetwork))
		c := client(t, r, nil)
		if most := try(t, c, tries); most > manyGoroutines {
			t.Errorf("%d goroutines for %d tries", most, tries)
		}
		time.Sleep(time.Minute)
		if n := r.releases.Load(); n > 0 {
			t.Errorf("%d releases of attempts that were never sent", n)
		}
	})
}

// An attempt without an answer, or a place in the queue, is released even if the last attempt was not
// sent.
func TestNothingSentAfterSomethingWas(t *testing.T) {
	for what, first := range map[string]acquirer{
		"unknown":      func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, errNetwork },
		"in the queue": nil,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				held := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
				r := &rig{Backend: store.Connect(), noWatch: true}
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					if r.acquires.Load() > 1 {
						return driver.Grant{}, driver.Unsent(errNetwork)
					}
					if first != nil {
						next = first
					}
					return next(ctx, req)
				}
				c := client(t, r, nil)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				expect.Be(t, expect.Err(c.Mutex("x", distlock.Fair()).Lock(ctx)), context.DeadlineExceeded, "Lock")
				synctest.Wait()
				if n := r.releases.Load(); n != 1 || r.acquires.Load() < 2 {
					t.Errorf("%d releases after %d attempts, want 1 after several", n, r.acquires.Load())
				}
				mustUnlock(t, held)
			})
		})
	}
}

// What Unlock says after each sequence of the backend's answers: nil if it was released, ErrLost if it had been lost, and
// neither if that is not known. A try that was sent and had no answer has released what is gone afterwards, as far as anyone
// can know; one that was not sent, or was refused, has not.
func TestUnlockSaysWhatTheAnswersProve(t *testing.T) {
	unsent, refused := driver.Unsent(errNetwork), driver.Unsent(driver.ErrUnsupported)
	answers := []error{nil, driver.ErrLost, errNetwork, driver.ErrInvalid, unsent, refused}
	said := map[error]int{}
	for n := range 6 * 6 * 6 * 6 {
		sequence := []error{answers[n%6], answers[n/6%6], answers[n/36%6], answers[n/216]}
		want, sent := error(distlock.ErrUnavailable), false
		for _, answer := range sequence {
			if answer == nil || answer == driver.ErrLost {
				if want = answer; sent {
					want = nil
				}
				break
			}
			sent = sent || !errors.Is(answer, driver.ErrUnsent)
		}
		synctest.Test(t, func(t *testing.T) {
			r := newRig()
			lease := mustLock(t, client(t, r, nil).Mutex("x"))
			r.set(func(r *rig) {
				r.release = func(context.Context, driver.Hold, releaser) error {
					return append(sequence, driver.ErrLost)[min(r.releases.Load()-1, 4)]
				}
			})
			err := lease.Unlock(t.Context())
			if !errors.Is(err, want) || want == distlock.ErrUnavailable && errors.Is(err, distlock.ErrLost) {
				t.Errorf("Unlock after the answers %v: %v, want %v", sequence, err, want)
			}
		})
		said[want]++
	}
	if len(said) != 3 {
		t.Errorf("the sequences ask for %v", said)
	}
}

// However many attempts have no answer, a few goroutines release their locks soon after the
// outage.
func TestOutageOfManyTries(t *testing.T)     { outageOfTries(t, someTries) }
func TestLongOutageOfManyTries(t *testing.T) { outageOfTries(t, manyTries) }

func outageOfTries(t *testing.T, tries int) {
	ofEachLife(t, func(t *testing.T, store *memlock.Store, r *rig) {
		acquire := r.acquire
		outage(r, true, errNetwork)
		c := client(t, r, &distlock.Options{TTL: 10 * time.Minute})
		if most := try(t, c, tries); most > manyGoroutines {
			t.Errorf("%d goroutines for %d tries", most, tries)
		}
		time.Sleep(time.Minute)
		before := r.releases.Load()
		time.Sleep(time.Minute)
		if n := r.releases.Load() - before; n == 0 || n > 150 {
			t.Errorf("%d calls in a minute", n)
		}
		r.set(func(r *rig) { r.acquire, r.release = acquire, nil })
		time.Sleep(10 * time.Second)
		allFree(t, store)
		time.Sleep(time.Minute)
		if n := r.releases.Load(); n > 3*int64(tries) {
			t.Errorf("%d releases of %d", n, tries)
		}
	})
}

// Close returns within its bound, however many releases have no answer, and reports them.
func TestCloseAmidAnOutage(t *testing.T) {
	ofEachLife(t, func(t *testing.T, _ *memlock.Store, r *rig) {
		silent := func(ctx context.Context, _ driver.Hold, _ releaser) error {
			<-ctx.Done()
			return ctx.Err()
		}
		outage(r, true, errNetwork)
		r.set(func(r *rig) { r.release = silent })
		c := must.Get(distlock.New(r, nil))(t)
		try(t, c, 1000)
		start := time.Now()
		err := c.Close()
		if d := time.Since(start); d > 11*time.Second {
			t.Errorf("Close after %v", d)
		}
		if err == nil || !strings.Contains(err.Error(), "1000 releases had no answer") {
			t.Errorf("Close: %v", err)
		}
		synctest.Wait()
		before := r.releases.Load()
		time.Sleep(time.Minute)
		if n := r.releases.Load() - before; n > 0 {
			t.Errorf("%d releases after Close", n)
		}
	})
}

// Releases without an answer delay the releases of other locks only for a moment.
func TestSilentReleasesBesideOthers(t *testing.T) {
	ofEachLife(t, func(t *testing.T, store *memlock.Store, r *rig) {
		acquire := r.acquire
		outage(r, true, errNetwork)
		r.set(func(r *rig) {
			r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
				if strings.HasPrefix(h.Name, "well") {
					return next(ctx, h)
				}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		c := client(t, r, nil)
		try(t, c, 200)
		expect.Be(t, expect.Err(c.Mutex("well").TryLock(t.Context())), distlock.ErrUnavailable, "TryLock")
		time.Sleep(2 * time.Second)
		free(t, c, "well")
		r.set(func(r *rig) { r.acquire, r.release = acquire, nil })
	})
}

// Where holds live as long as the session, a full backlog refuses further attempts.
func TestLargeNoMoreThanCanBeReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := newSession(store)
		acquire := r.acquire
		outage(r, true, errNetwork)
		c := client(t, r, nil)
		const most = 1 << 15
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range most/4 + 100 {
					c.Mutex(fmt.Sprint(w, " ", i)).TryLock(t.Context())
				}
			})
		}
		wg.Wait()
		if n := r.acquires.Load(); n < most || n > most+4 {
			t.Errorf("%d attempts, want %d", n, most)
		}
		if _, err := c.Mutex("x").TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) || !strings.Contains(err.Error(), "releases") {
			t.Errorf("TryLock: %v", err)
		}
		r.set(func(r *rig) { r.acquire, r.release = acquire, nil })
		time.Sleep(10 * time.Second)
		mustUnlock(t, mustLock(t, c.Mutex("x")))
		allFree(t, store)
	})
}

// Where holds end by their TTL, a full backlog drops releases.
func TestLargeBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		outage(r, true, errNetwork)
		c := client(t, r, &distlock.Options{TTL: 10 * time.Minute})
		const most, more = 1 << 15, 1000
		for i := range most + more {
			c.Mutex(fmt.Sprint(i)).TryLock(t.Context())
		}
		r.set(func(r *rig) { r.acquire, r.release = nil, nil })
		time.Sleep(10 * time.Second)
		left := 0
		for range client(t, store.Connect(), nil).List(t.Context(), "") {
			left++
		}
		if left == 0 || left > more {
			t.Errorf("%d are left to their TTL, want about %d", left, more)
		}
	})
}

// A lock that is kept for MinHold costs no goroutine.
func TestManyMinHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, newSession(store), nil)
		before := testkit.Goroutines()
		for i := range 1000 {
			mustUnlock(t, mustLock(t, c.Mutex(fmt.Sprint(i), distlock.MinHold(time.Hour))))
		}
		if n := testkit.Goroutines() - before; n > manyGoroutines {
			t.Errorf("%d goroutines", n)
		}
		time.Sleep(time.Hour + time.Second)
		allFree(t, store)
	})
}

// An attempt that gets no answer while the client is being closed is released too.
func TestNoAnswerDuringClose(t *testing.T) {
	ofEachLife(t, func(t *testing.T, store *memlock.Store, r *rig) {
		acquire := r.acquire
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if acquire != nil {
				acquire(ctx, req, next)
			} else {
				next(ctx, req)
			}
			time.Sleep(time.Second)
			return driver.Grant{}, errNetwork
		}
		c := must.Get(distlock.New(r, nil))(t)
		locked := make(chan error, 1)
		go func() {
			_, err := c.Mutex("x").Lock(t.Context())
			locked <- err
		}()
		synctest.Wait()
		expect.OK(t, c.Close(), "Close")
		expect.Be(t, <-locked, distlock.ErrClosed, "Lock")
		expect.Equal(t, r.releases.Load(), 1, "releases")
		allFree(t, store)
	})
}

// Held locks whose releases get no answer do not keep Close from releasing the others.
func TestCloseBesideSilentReleases(t *testing.T) {
	ofEachLife(t, func(t *testing.T, store *memlock.Store, r *rig) {
		b := &tracked{rig: r, t: t, in: map[string]string{}}
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			if strings.HasPrefix(h.Name, "well") {
				return next(ctx, h)
			}
			<-ctx.Done()
			return ctx.Err()
		}
		c := must.Get(distlock.New(b, nil))(t)
		for i := range 200 {
			mustLock(t, c.Mutex(fmt.Sprint("silent ", i)))
			mustLock(t, c.Mutex(fmt.Sprint("well ", i)))
		}
		start := time.Now()
		err := c.Close()
		if d := time.Since(start); d > 11*time.Second {
			t.Errorf("Close after %v", d)
		}
		if err == nil || !strings.Contains(err.Error(), "200 locks were not released") {
			t.Errorf("Close: %v", err)
		}
		left := 0
		for range client(t, store.Connect(), nil).List(t.Context(), "well") {
			left++
		}
		if left > 0 {
			t.Errorf("%d locks are not free", left)
		}
	})
}

// An attempt that has released its Owner is followed by one with a fresh Owner. The old one is released again if it
// may have something.
func TestSpentOwner(t *testing.T) {
	for what, c := range map[string]struct {
		err      error
		released int
	}{
		"refused": {&driver.HeldError{Retry: time.Millisecond}, 0},
		"unknown": {errNetwork, 1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var owners, released []string
				r := newRig()
				r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
					if owners = append(owners, req.Owner); len(owners) == 1 {
						return driver.Grant{}, driver.Spent(c.err)
					}
					return next(ctx, req)
				}
				r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
					released = append(released, h.Owner)
					return next(ctx, h)
				}
				lease := mustLock(t, client(t, r, nil).Mutex("x"))
				synctest.Wait()
				if owners[0] == lease.Owner() || len(released) != c.released || c.released == 1 && released[0] != owners[0] {
					t.Errorf("Owners %q, released %q, held by %q", owners, released, lease.Owner())
				}
				mustUnlock(t, lease)
			})
		})
	}
}
