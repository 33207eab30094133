package locktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// LockRow locks a name's row, like an administrator's open transaction. unlock may be called again.
type LockRow func(name string) (unlock func())

// BesideALockedRow locks the row of one hold of b. Its hold is unknown. Ten other holds, renewed by the same calls, live
// on for longer than their TTL, as the attempts of other find.
func BesideALockedRow(t *testing.T, b, other driver.Backend, mode driver.Mode, lock LockRow) {
	const rounds = 5
	ttl := 1500 * time.Millisecond // doubled at first, and again on a slow machine
	holds := make([]driver.Hold, 10)
	for i := range holds {
		holds[i] = driver.Hold{Name: fmt.Sprint("job ", i), Owner: driver.NewOwner(), Mode: mode, TTL: ttl}
	}
	stuck := driver.Request{Fences: 1, Hold: driver.Hold{Name: "stuck", Owner: driver.NewOwner(), Mode: mode, TTL: time.Hour}}
	Acquire(t, b, stuck)
	unlock := lock(stuck.Name)
	defer unlock()
	var anchor time.Time
	for round := 0; round < rounds; {
		if time.Since(anchor) > ttl*8/10 {
			ttl *= 2
			anchor = time.Now()
			for i := range holds {
				holds[i].TTL = ttl
				Acquire(t, b, driver.Request{Hold: holds[i], Fences: 1})
			}
			continue
		}
		since := anchor
		anchor = time.Now()
		stuck.TTL = ttl
		errs := renewBeside(t, b, append(holds, stuck.Hold))
		if time.Since(since) > ttl {
			anchor = time.Time{}
			continue
		}
		for i, err := range errs {
			if i < len(holds) && err != nil || errors.Is(err, driver.ErrLost) {
				t.Fatal(err)
			}
		}
		time.Sleep(ttl / 3)
		if refusedInTime(t, other, holds, anchor.Add(ttl*8/10)) {
			round++
		}
	}
	wantUnknown(t, b, stuck.Hold, holds[0])
	for _, h := range holds {
		if err := b.Release(t.Context(), h); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
	}
	unlock()
	Eventually(t, "the hold is renewed when its row is free", func() bool { return b.Renew(t.Context(), []driver.Hold{stuck.Hold})[0] == nil })
}

// renewBeside renews holds, one of which has a locked row, and wants the call to return in time.
func renewBeside(t *testing.T, b driver.Backend, holds []driver.Hold) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	errs := b.Renew(ctx, holds)
	if ctx.Err() != nil {
		t.Fatalf("the renewal waited for the locked row: %v", errs)
	}
	return errs
}

// wantUnknown wants the renewal of stuck to be unknown for longer than stuck lives, and the renewal of
// free, in the same calls, to succeed.
func wantUnknown(t *testing.T, b driver.Backend, stuck, free driver.Hold) {
	t.Helper()
	Acquire(t, b, driver.Request{Hold: free, Fences: 1})
	stuck.TTL, free.TTL = 2*time.Hour, 2*time.Hour
	errs := renewBeside(t, b, []driver.Hold{stuck, free})
	if err := errs[0]; err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
		t.Errorf("the hold whose row is locked: %v; want unknown", err)
	}
	if errs[1] != nil {
		t.Errorf("the hold beside it: %v", errs[1])
	}
}

// refusedInTime wants rivals of all holds to be refused, if they try before end.
func refusedInTime(t *testing.T, b driver.Backend, holds []driver.Hold, end time.Time) (inTime bool) {
	t.Helper()
	for _, h := range holds {
		rival := driver.Request{Hold: h, Fences: 1}
		if rival.Owner = driver.NewOwner(); h.Mode == driver.Read {
			rival.Mode = driver.Write
		}
		_, err := b.Acquire(t.Context(), rival)
		if time.Now().After(end) {
			_ = b.Release(t.Context(), rival.Hold)
			return false
		}
		if !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("%s: %v; want held", h.Name, err)
		}
	}
	return true
}

// RenewWaitsForItsRow wants a hold that is renewed alone to wait a little for its row. Other owners may change that row
// often, and take long to commit.
func RenewWaitsForItsRow(t *testing.T, b driver.Backend, hold driver.Hold, lock LockRow) {
	Eventually(t, "the hold is renewed though its row was locked", func() bool {
		unlock := lock(hold.Name)
		defer unlock()
		time.AfterFunc(300*time.Millisecond, unlock)
		return b.Renew(t.Context(), []driver.Hold{hold})[0] == nil
	})
}
