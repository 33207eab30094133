package s3lock

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A process that comes after a holder died has the lock soon after its TTL by the store's clock, whatever the clocks of both say;
// one whose store has no clock that can be used does not.
func TestStoreEndsAHold(t *testing.T) {
	for name, c := range map[string]struct {
		ahead, proxy time.Duration // the store's clock ahead of ours, and a proxy's ahead of the store's
		query        string
		late         time.Duration
	}{
		"a store": {late: record.Late}, "a store whose clock is behind": {ahead: -50 * time.Hour, late: record.Late},
		"a proxy whose clock is ahead": {proxy: 4 * time.Second}, "a proxy whose clock is behind": {proxy: -3 * time.Second},
		"without": {query: "&clock=off"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			now := time.Now().Truncate(time.Second).Add(c.ahead) // no second ends in the middle of a probe
			f.clock, f.proxy = func() time.Time { return now }, c.proxy
			url := f.serve(t) + c.query
			r := request("job")
			r.TTL = time.Minute
			dead := connect(t, url)
			expect.Equal(t, dead.Caps().Late, c.late, "Late")
			locktest.Acquire(t, dead, r)
			for _, passed := range []time.Duration{r.TTL - time.Second, 2 * time.Second, 9 * time.Second} {
				f.set(func() { now = now.Add(passed) })
				b := connect(t, url)
				r := request("job")
				g, err := b.Acquire(t.Context(), r)
				free := passed == 9*time.Second && c.late > 0
				if (err == nil) != free {
					t.Errorf("after %v more: %+v, %v", passed, g, err)
				}
				if free {
					locktest.Release(t, b, r)
				}
			}
		})
	}
}

// A clock of the store that jumps forward ends the hold of a live holder, who finds out at its next renewal. The fence of the next one
// is greater. Without the store's clock nobody else gets the lock.
func TestStoreClockJumps(t *testing.T) {
	f := newFake()
	now := time.Now()
	f.clock = func() time.Time { return now }
	url := f.serve(t)
	b, r := connect(t, url), request("job")
	g := locktest.Acquire(t, b, r)
	strict, newcomer := connect(t, url+"&clock=off"), connect(t, url)
	f.set(func() { now = now.Add(2 * time.Hour) })
	locktest.Held(t, strict, request("job"))
	if next := locktest.Acquire(t, newcomer, request("job")); next.Fence <= g.Last() {
		t.Errorf("fence %d after %d", next.Fence, g.Last())
	}
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "the holder's renewal")
}

// An object without times has no age.
func TestStoreWithoutTimes(t *testing.T) {
	f := newFake()
	f.timeless = true
	url := f.serve(t)
	expect.Equal(t, connect(t, url).Caps().Late, 0, "Late")
	locktest.Acquire(t, connect(t, url), request("job"))
	locktest.Held(t, connect(t, url), request("job"))
}

// First attempts and Inspect do not wait for the turns of those who wait.
func TestFirstAttemptsPassWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		holder := backendAt(direct{f, time.Millisecond})
		const waiters = 500
		for i := range waiters {
			locktest.Acquire(t, holder, request(fmt.Sprint("lock ", i)))
		}
		b := backendAt(direct{f, time.Millisecond})
		locks := must.Get(distlock.New(b, nil))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				_, err := locks.Mutex(fmt.Sprint("lock ", i)).Lock(ctx)
				expect.Be(t, err, context.Canceled)
			})
		}
		time.Sleep(time.Minute)
		began := time.Now()
		for i := range 400 {
			mustUnlock(t, must.Get(locks.Mutex(fmt.Sprint("fresh ", i)).TryLock(t.Context()))(t))
			must.Get(b.Inspect(t.Context(), "lock 1"))(t)
		}
		if took := time.Since(began); took > 400*10*time.Millisecond {
			t.Errorf("400 fresh names took %v", took)
		}
		cancel()
		wg.Wait()
		expect.OK(t, locks.Close())
	})
}

func mustUnlock(t *testing.T, l *distlock.Lease) {
	t.Helper()
	must.OK(t, l.Unlock(t.Context()))
}

// Stores refuse a condition in several ways, and some keep what was deleted.
func TestWaysToRefuseACondition(t *testing.T) {
	t.Run("304", func(t *testing.T) {
		f := newFake()
		f.unmet = http.StatusNotModified
		url := f.serve(t)
		locktest.Acquire(t, connect(t, url), request("job"))
		locktest.Held(t, connect(t, url), request("job"))
	})
	t.Run("409 for each third", func(t *testing.T) {
		f := newFake()
		n := 0
		f.instead = func(r *http.Request) *storeError {
			if r.Method == http.MethodPut {
				if n++; n%3 == 0 {
					return &storeError{status: http.StatusConflict, code: "ConditionalRequestConflict"}
				}
			}
			return nil
		}
		connect(t, f.serve(t))
	})
	t.Run("409 for all", func(t *testing.T) {
		f := newFake()
		f.instead = func(r *http.Request) *storeError {
			if r.Method == http.MethodPut {
				return &storeError{status: http.StatusConflict, code: "ObjectParentIsFile", message: "a folder is a file"}
			}
			return nil
		}
		locktest.OpenFails(t, Open, f.serve(t), true, "409 ObjectParentIsFile: a folder is a file")
	})
	t.Run("a deleted key can't be made again", func(t *testing.T) {
		f := newFake()
		url := f.serve(t)
		b := connect(t, url)
		f.set(func() {
			f.instead = func(r *http.Request) *storeError {
				if r.Header.Get("If-None-Match") != "" {
					return &storeError{status: http.StatusPreconditionFailed, code: "PreconditionFailed"}
				}
				return nil
			}
		})
		_, err := b.Acquire(t.Context(), request("job"))
		locktest.Fails(t, "a key that was deleted", err, false, "412 PreconditionFailed", "the store does not let a deleted one be made again")
	})
}
