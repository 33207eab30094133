package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// An outage of half of the TTL, and of a little more, costs no lease, whenever it begins, whether
// requests get no answer or connections are refused. The bounds differ by the margin, which is a
// tenth of 3 s and a thirtieth of 30 s.
func TestOutagesThatAreNotNoticed(t *testing.T)     { outagesAreNotNoticed(t, 50) }
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
