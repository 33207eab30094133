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
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// An outage of half of the TTL, and of a little more, costs no lease, whenever it begins, whether
// requests get no answer or connections are refused. The bounds differ by the margin, which is a
// tenth of 3 s and a thirtieth of 30 s.
func TestOutagesThatAreNotNoticed(t *testing.T) { outagesAreNotNoticed(t, 50) }

func TestLongOutagesThatAreNotNoticed(t *testing.T) { outagesAreNotNoticed(t, 300) }

func outagesAreNotNoticed(t *testing.T, phases int) {
	for ttl, part := range map[time.Duration]float64{3 * time.Second: 0.54, 30 * time.Second: 0.59} {
		for what, outage := range map[string]renewer{"no answer": hang, "refused": refuse} {
			length := time.Duration(part * float64(ttl))
			t.Run(fmt.Sprintf("%s for %v at %v", what, length, ttl), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if lost := outages(t, ttl, length, phases, outage); lost > 0 {
						t.Errorf("%d of %d leases were lost", lost, phases)
					}
				})
			})
		}
	}
}

func hang(ctx context.Context, holds []driver.Hold) []error {
	<-ctx.Done()
	return allErrors(holds, ctx.Err())
}

func refuse(_ context.Context, holds []driver.Hold) []error {
	return allErrors(holds, errNetwork)
}

// outages holds one lease per phase, each at a backend of its own that is unreachable for length,
// from a different moment between two renewals on. It returns how many leases were lost.
func outages(t *testing.T, ttl, length time.Duration, phases int, away renewer) (lost int) {
	const rtt = 5 * time.Millisecond
	start := time.Now()
	leases := make([]*distlock.Lease, phases)
	for i := range leases {
		from := ttl + ttl/3*time.Duration(i)/time.Duration(phases)
		r := newRig()
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
			for range 2 { // the request, and the answer
				if d := time.Since(start); d >= from && d < from+length {
					return away(ctx, holds)
				}
				time.Sleep(rtt / 2)
			}
			if ctx.Err() != nil {
				return allErrors(holds, ctx.Err())
			}
			return next(ctx, holds)
		}
		leases[i] = mustLock(t, client(t, r, &distlock.Options{TTL: ttl}).Mutex("x"))
	}
	time.Sleep(4 * ttl)
	for _, l := range leases {
		if err := l.Err(); errors.Is(err, distlock.ErrLost) {
			lost++
		}
	}
	return lost
}

// blocking is a renewer that puts its whole batch into one statement: a hold whose name begins
// with "bad" blocks all of them until ctx ends. It counts how many calls run at once.
type blocking struct {
	rtt time.Duration

	mu          sync.Mutex
	calls, most int
}

func (b *blocking) renew(ctx context.Context, holds []driver.Hold, next renewer) []error {
	b.begin(1)
	defer b.begin(-1)
	for _, h := range holds {
		if strings.HasPrefix(h.Name, "bad") {
			<-ctx.Done()
			return allErrors(holds, ctx.Err())
		}
	}
	time.Sleep(b.rtt)
	if ctx.Err() != nil {
		return allErrors(holds, ctx.Err())
	}
	return next(ctx, holds)
}

func (b *blocking) begin(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls += n
	b.most = max(b.most, b.calls)
}

// silentHolds has a number of holds, some of them bad, and the server's round trip.
type silentHolds struct {
	holds, bad int
	ttl, rtt   time.Duration
}

// A hold whose renewal blocks its whole call each time costs no other hold its life. The number of
// calls at once is bounded.
func TestSilentHoldsLeaveTheirBatch(t *testing.T) {
	silentHoldsLeave(t, []silentHolds{
		{2, 1, ttl, 0}, {10, 1, ttl, time.Second}, {200, 2, ttl, 50 * time.Millisecond}, {1000, 10, ttl / 10, 5 * time.Millisecond},
	})
}

func TestLongSilentHoldsLeaveTheirBatch(t *testing.T) {
	silentHoldsLeave(t, []silentHolds{
		{1000, 1, ttl, 50 * time.Millisecond}, {1000, 10, ttl, 50 * time.Millisecond}, {5000, 10, ttl, 10 * time.Millisecond},
		{1000, 1, ttl / 10, 10 * time.Millisecond},
	})
}

func silentHoldsLeave(t *testing.T, tests []silentHolds) {
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d of %d at %v", test.bad, test.holds, test.ttl), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := &blocking{rtt: test.rtt}
				r := newRig()
				r.renew = backend.renew
				c := client(t, r, &distlock.Options{TTL: test.ttl})
				leases := map[string]*distlock.Lease{}
				for i := range test.holds {
					name := fmt.Sprint("good ", i)
					if i%(test.holds/test.bad) == 0 {
						name = fmt.Sprint("bad ", i)
					}
					leases[name] = mustLock(t, c.Mutex(name))
				}
				time.Sleep(2 * test.ttl)
				for name, l := range leases {
					expect.Equal(t, strings.HasPrefix(name, "bad"), (l.Err() != nil), name, l.Err())
				}
				if backend.most > 40 {
					t.Errorf("%d calls at once", backend.most)
				}
				r.set(func(r *rig) { r.renew = nil })
			})
		})
	}
}

// After an outage in which no request was answered a few calls renew all holds.
func TestManyHoldsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		var leases []*distlock.Lease
		for i := range 5000 {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint(i))))
		}
		r.set(func(r *rig) { r.renew = blackHole })
		time.Sleep(ttl / 2)
		r.renews.Store(0)
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				time.Sleep(50 * time.Millisecond)
				return next(ctx, holds)
			}
		})
		time.Sleep(ttl - ttl/6)
		for _, l := range leases {
			if l.Err() != nil {
				t.Fatalf("%s: %v", l.Name(), l.Err())
			}
		}
		if n := r.renews.Load(); n > 1000 {
			t.Errorf("%d calls for 5000 holds", n)
		}
		r.set(func(r *rig) { r.renew = nil })
	})
}

// A hold that waits for a retry can be extended and unlocked meanwhile.
func TestUnknownAndExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &blocking{}
		r := newRig()
		b := &tracked{rig: r, t: t, in: map[string]string{}}
		r.renew = backend.renew
		c := client(t, b, nil)
		var leases []*distlock.Lease
		for i := range 200 {
			leases = append(leases, mustLock(t, c.Mutex(fmt.Sprint("bad ", i))))
		}
		time.Sleep(ttl * 7 / 10) // one batch of all has failed, and most of them wait
		r.set(func(r *rig) { r.renew = nil })
		var wg sync.WaitGroup
		for i, l := range leases {
			wg.Go(func() {
				if i%2 == 0 {
					mustUnlock(t, l)
					return
				}
				expect.OK(t, l.Extend(t.Context(), 2*ttl), "Extend")
			})
		}
		wg.Wait()
		time.Sleep(10 * ttl)
		for i, l := range leases {
			if i%2 == 1 {
				if l.Err() != nil {
					t.Errorf("%s: %v", l.Name(), l.Err())
				}
				mustUnlock(t, l)
			}
		}
	})
}

// Silent holds with a long TTL do not occupy all calls for long. A hold with a short TTL that
// missed a single answer is not lost.
func TestSilentHoldsOfALongTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &blocking{}
		r := newRig()
		r.renew = backend.renew
		c := client(t, r, nil)
		for i := range 40 {
			mustLock(t, c.Mutex(fmt.Sprint("bad ", i), distlock.WithTTL(time.Hour)))
		}
		good := mustLock(t, c.Mutex("good"))
		// Their first renewals have failed, and further ones are under way.
		time.Sleep(36 * time.Minute)
		missed := false
		r.set(func(r *rig) {
			r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error {
				if holds[0].Name == "good" && !missed {
					missed = true
					return allErrors(holds, errNetwork)
				}
				return backend.renew(ctx, holds, next)
			}
		})
		time.Sleep(2 * ttl)
		if err := good.Err(); err != nil || !missed {
			t.Errorf("missed an answer: %v, lease: %v", missed, err)
		}
		r.set(func(r *rig) { r.renew = nil })
	})
}
