package distlock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// Times near the greatest that a Duration can hold.

// A time beyond the bound is refused by name, and reaches no backend.
func TestTimesBeyondTheBound(t *testing.T) {
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2, driver.MaxTTL + 1} {
		r := newRig()
		c := client(t, r, nil)
		for what, opts := range map[string][]distlock.LockOption{
			"TTL":     {distlock.WithTTL(d)},
			"MaxHold": {distlock.MaxHold(d)},
			"MinHold": {distlock.MinHold(d)},
		} {
			_, err := c.Mutex(what, opts...).TryLock(t.Context())
			refused(t, err, what)
		}
		expect.Equal(t, r.acquires.Load(), 0, "it reached the backend")
		for what, o := range map[string]*distlock.Options{
			"TTL": {TTL: d}, "CallTimeout": {CallTimeout: d}, "HandoffWindow": {HandoffWindow: d}, "margin": {Margin: d},
		} {
			_, err := distlock.New(memlock.New(), o)
			refused(t, err, what)
		}
		for _, opts := range [][]distlock.LockOption{nil, {distlock.WithoutRenewal()}, {distlock.MaxHold(time.Hour)}} {
			lease := mustLock(t, c.Mutex("x", opts...))
			refused(t, lease.Extend(t.Context(), d), "extension")
			if err := lease.Err(); err != nil {
				t.Errorf("after Extend by %v: %v", d, err)
			}
			mustUnlock(t, lease)
		}
	}
}

func refused(t *testing.T, err error, what string) {
	t.Helper()
	if !errors.Is(err, distlock.ErrInvalid) || !strings.Contains(err.Error(), what) {
		t.Errorf("%s: %v, want ErrInvalid that says so", what, err)
	}
}

// At the bound everything works.
func TestTimesAtTheBound(t *testing.T) {
	const most = driver.MaxTTL
	for what, opts := range map[string][]distlock.LockOption{
		"TTL":     {distlock.WithTTL(most)},
		"fixed":   {distlock.WithTTL(most), distlock.WithoutRenewal()},
		"MaxHold": {distlock.MaxHold(most)},
		"MinHold": {distlock.MinHold(most)},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				c, other := client(t, store.Connect(), nil), client(t, store.Connect(), nil)
				start := time.Now()
				lease := mustLock(t, c.Mutex("x", opts...))
				time.Sleep(time.Hour)
				expect.OK(t, lease.Extend(t.Context(), most-time.Second-time.Hour), "Extend")
				time.Sleep(time.Hour)
				expect.OK(t, lease.Err(), "the lease")
				mustUnlock(t, lease)
				_, err := other.Mutex("x").TryLock(t.Context())
				expect.Equal(t, what == "MinHold", errors.Is(err, distlock.ErrHeld), "the next holder", err)
				if what == "MinHold" {
					time.Sleep(time.Until(start.Add(most)))
					mustUnlock(t, mustLock(t, other.Mutex("x")))
				}
			})
		})
	}
}

// Extend grants the requested time, or returns an error that names the backend's maximum.
func TestExtendUpToTheMaximum(t *testing.T) {
	r := newRig()
	r.caps = func(caps driver.Caps) driver.Caps { caps.MaxTTL = time.Hour; return caps }
	lease := mustLock(t, client(t, r, nil).Mutex("x"))
	refused(t, lease.Extend(t.Context(), time.Hour), "extension")
	if err := lease.Extend(t.Context(), time.Hour-time.Second); err != nil || time.Until(lease.Deadline()) < time.Hour-time.Minute {
		t.Errorf("Extend: %v, deadline in %v", err, time.Until(lease.Deadline()))
	}
	mustUnlock(t, lease)
}

// A MinHold that the backend can't keep is refused.
func TestMinHoldBeyondTheMaximum(t *testing.T) {
	r := newRig()
	r.caps = func(caps driver.Caps) driver.Caps { caps.MaxTTL = time.Hour; return caps }
	_, err := client(t, r, nil).Mutex("x", distlock.MinHold(time.Hour+1)).Lock(t.Context())
	refused(t, err, "MinHold")
}

// The pauses between unanswered renewals do not overflow when they are doubled many times.
func TestPausesOfALongTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error { return allErrors(holds, errNetwork) }
		lease := mustLock(t, client(t, r, nil).Mutex("x", distlock.WithTTL(driver.MaxTTL)))
		<-lease.Context().Done()
		if n := r.renews.Load(); n > 200 {
			t.Errorf("%d renewals", n)
		}
	})
}
