package redislock

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// awaits asks for r as the core does, at the latest when the refusal says, and tells
// when it was let in.
func awaits(t *testing.T, b *Backend, r driver.Request) (in time.Time) {
	t.Helper()
	for deadline := time.Now().Add(tooLong); time.Now().Before(deadline); {
		_, err := b.Acquire(t.Context(), r)
		var held *driver.HeldError
		if err == nil {
			return time.Now()
		}
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		time.Sleep(min(max(held.Retry, time.Millisecond), tooLong))
	}
	t.Fatal("never let in")
	return in
}

// A process that dies while it waits keeps those behind it out until its place ends,
// wherever it stood, and not until theirs do. It is cut off, so that it can't leave.
func TestDeadWaiterAnywhereInLine(t *testing.T) {
	const life = 600 * time.Millisecond
	eachLayout(t, func(t *testing.T, layout Layout) {
		srv := testserver.SharedRedis(t)
		for dead := range 3 {
			b, _, r := heldLine(t, layout)
			p := faultproxy.New(t, srv.Addr())
			gone := openOwn(t, p.Addr(), Options{Layout: layout})
			var waiters []driver.Request
			var died time.Time
			for i := range 3 {
				by, w := b, request(r.Name, driver.Exclusive)
				w.TTL = time.Hour
				if i == dead {
					by, w.TTL, died = gone, life, time.Now()
				}
				w.Queue = true
				refused(t, by, w, driver.ErrHeld)
				waiters = append(waiters, w)
			}
			p.Silence()
			release(t, b, r)
			for i, w := range waiters {
				if i == dead {
					continue
				}
				in := awaits(t, b, w).Sub(died)
				if i > dead && in < life {
					t.Errorf("dead at %d: %d passed it after %v", dead, i, in)
				}
				release(t, b, w)
			}
		}
	})
}

// A waiter is told to come back when the first place expires, to the millisecond
// by the server's clock.
func TestRetryIsTheEndOfTheFirstPlace(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		b, c, r := heldLine(t, layout)
		first := request(r.Name, driver.Exclusive)
		first.Queue, first.TTL = true, time.Hour
		refused(t, b, first, driver.ErrHeld)
		second := stands(t, b, r.Name)
		release(t, b, r)
		for _, next := range []driver.Request{second, request(r.Name, driver.Exclusive)} {
			var held *driver.HeldError
			err := refused(t, b, next, driver.ErrHeld)
			if !errors.As(err, &held) || held.Retry > first.TTL+2*time.Millisecond || held.Retry < first.TTL-10*time.Minute {
				t.Errorf("refused with %v, want the end of the first place", err)
			}
		}
		// By its end the first is gone, for Inspect and for all that asks.
		member := b.layout.recipes[driver.Exclusive].field(first.Owner)
		c.ZAdd(t.Context(), b.layout.queueKeys(r.Name)[1], zOf(member, 1))
		info, err := b.Inspect(t.Context(), r.Name)
		if err != nil || len(info.Waiters) != 1 || info.Waiters[0].Owner != second.Owner {
			t.Errorf("inspect: %+v, %v", info, err)
		}
		if err := b.Release(t.Context(), first.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a place that has ended is left: %v", err)
		}
		acquire(t, b, second)
	})
}

// Several processes get in one by one, as they came.
func TestLineOverProcesses(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		srv := testserver.SharedRedis(t)
		b, c, r := heldLine(t, layout)
		var waiters []driver.Request
		var backends []*Backend
		var watches []driver.Watch
		for i := range 9 {
			o := openers[i%3].open(t, srv.Addr(), Options{Layout: layout})
			w := stands(t, o, r.Name)
			waiters, backends, watches = append(waiters, w), append(backends, o), append(watches, armWatch(t, o, w))
		}
		held := append([]driver.Request{r}, waiters...)
		for i, w := range waiters {
			release(t, b, held[i])
			signalled(t, watches[i])
			for k := i + 1; k < len(waiters); k++ {
				refused(t, backends[k], waiters[k], driver.ErrHeld)
				if len(watches[k].Ready) > 0 {
					t.Errorf("release %d woke %d", i, k)
				}
			}
			if g := acquire(t, backends[i], w); g.Queued != (i+1 < len(waiters)) || g.Fences != 1 {
				t.Errorf("grant %d: %+v", i, g)
			}
			watches[i].Close()
		}
		release(t, b, waiters[len(waiters)-1])
		if left := dump(t, c, r); slices.ContainsFunc(left, func(s string) bool { return !isToken(s) }) {
			t.Errorf("left: %v", left)
		}
	})
}
