package renew_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// slowServer serves calls one after the other, also those whose callers have gone.
type slowServer struct {
	perHold time.Duration

	mu   sync.Mutex
	free time.Time // when it has served all calls so far
}

func (s *slowServer) renew(ctx context.Context, holds []driver.Hold) []error {
	s.mu.Lock()
	if now := time.Now(); s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(len(holds)) * s.perHold)
	served := time.NewTimer(time.Until(s.free))
	s.mu.Unlock()
	defer served.Stop()
	select {
	case <-served.C:
		return make([]error, len(holds))
	case <-ctx.Done():
		return slices.Repeat([]error{ctx.Err()}, len(holds))
	}
}

// A server that renews all holds in a fifth of the TTL is quick enough. Calls that begin together have
// a quarter of the TTL: beyond that the last ones have no answer, and their retries are more work.
func TestNoHoldIsLostAtASlowServer(t *testing.T) {
	const holds, ttl = 10_000, 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &slowServer{perHold: ttl / 5 / holds}
		r.Renew = s.renew
		terms := renew.Terms{TTL: ttl, Margin: ttl / 10, CallTimeout: ttl / 3}
		all := make([]*holder, holds)
		for i := range all {
			all[i] = r.add(t, fmt.Sprint(i), func(t *renew.Terms) { *t = terms })
		}
		time.Sleep(5*ttl + time.Microsecond)
		synctest.Wait()
		for _, h := range all {
			h.lostBy(t, nil, false, 0)
			if answers := h.answered(); answers < 10 {
				t.Fatalf("%s: %d renewals in 5 TTLs", h.name, answers)
			}
		}
	})
}
