package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Whoever takes a lock again at once lets others go first, if there were some lately.
func TestOthersGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		a, b := s.open(), s.open()
		pause := func() time.Duration {
			since, r := time.Now(), request(driver.Exclusive)
			must.Get(a.Acquire(t.Context(), r))(t)
			took := time.Since(since)
			must.OK(t, a.Release(t.Context(), r.Hold))
			return took
		}
		expect.Equal(t, pause(), 0, "a lock that only this backend uses")
		r, w := request(driver.Exclusive), queued(request(driver.Exclusive))
		must.Get(a.Acquire(t.Context(), r))(t)
		expect.Be(t, expect.Err(b.Acquire(t.Context(), w)), driver.ErrHeld)
		must.OK(t, a.Release(t.Context(), r.Hold))
		must.Get(b.Acquire(t.Context(), w))(t)
		must.OK(t, b.Release(t.Context(), w.Hold))
		pause() // it knows an older version
		expect.Equal(t, pause(), deference, "beside another")
		time.Sleep(lately)
		expect.Equal(t, pause(), 0, "a while later")
	})
}

// The first in the queue is said to be told of all that lets it in, when it has come and when it asks again. Others are not.
func TestWhoIsSignaled(t *testing.T) {
	s := newStore()
	a, b := s.open(), s.open()
	must.Get(a.Acquire(t.Context(), request(driver.Exclusive)))(t)
	for place, want := range []bool{true, false} {
		w := queued(request(driver.Exclusive))
		for range 2 {
			expect.Equal(t, locktest.Held(t, b, w).Signaled, want, "place", place)
		}
	}
	expect.Equal(t, locktest.Held(t, b, request(driver.Exclusive)).Signaled, false, "without a place")
}
