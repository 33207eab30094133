package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// leaseStrategies keep leases in tables.
var leaseStrategies = []Strategy{Row, UniqueIndex, Version}

// An administrator's transaction keeps one row locked. Its hold is unknown. Ten other holds, renewed by
// the same calls, live on for longer than their TTL.
func TestHoldsBesideALockedRow(t *testing.T) {
	t.Parallel()
	for _, s := range leaseStrategies {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
			if s != Row && mode != driver.Exclusive {
				continue
			}
			t.Run(string(s)+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				url, db := freshDatabase(t, s)
				besideALockedRow(t, connect(t, url), connect(t, url), db, mode)
			})
		}
	}
}

func besideALockedRow(t *testing.T, b, other *Backend, db *sql.DB, mode driver.Mode) {
	const rounds = 5
	ttl := 1500 * time.Millisecond // doubled at first, and again on a slow machine
	holds := make([]driver.Hold, 10)
	for i := range holds {
		r := request(fmt.Sprint("job ", i), ttl)
		r.Mode = mode
		holds[i] = r.Hold
	}
	stuck := request("stuck", long)
	stuck.Mode = mode
	take(t, b, stuck)
	unlock := lockRow(t, db, b.database.opts.Table, stuck.Name)
	defer unlock()
	var anchor time.Time
	for round := 0; round < rounds; {
		if time.Since(anchor) > ttl*8/10 {
			ttl *= 2
			anchor = time.Now()
			for i := range holds {
				holds[i].TTL = ttl
				take(t, b, driver.Request{Hold: holds[i], Fences: 1})
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
	inDoubt(t, b, stuck.Hold, holds[0])
	for _, h := range holds {
		if err := b.Release(t.Context(), h); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
	}
	unlock()
	until(t, "the hold is renewed when its row is free", func() bool { return b.Renew(t.Context(), []driver.Hold{stuck.Hold})[0] == nil })
}

// renewBeside renews holds, one of which has a locked row, and wants the call to return in time.
func renewBeside(t *testing.T, b *Backend, holds []driver.Hold) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	errs := b.Renew(ctx, holds)
	if ctx.Err() != nil {
		t.Fatalf("the renewal waited for the locked row: %v", errs)
	}
	return errs
}

// inDoubt wants the renewal of stuck to be unknown for longer than stuck lives, and the renewal of
// free, in the same calls, to succeed.
func inDoubt(t *testing.T, b *Backend, stuck, free driver.Hold) {
	t.Helper()
	take(t, b, driver.Request{Hold: free, Fences: 1})
	stuck.TTL, free.TTL = 2*long, 2*long
	errs := renewBeside(t, b, []driver.Hold{stuck, free})
	if err := errs[0]; err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
		t.Errorf("the hold whose row is locked: %v; want unknown", err)
	}
	if errs[1] != nil {
		t.Errorf("the hold beside it: %v", errs[1])
	}
}

// refusedInTime wants rivals of all holds to be refused, if they try before end.
func refusedInTime(t *testing.T, b *Backend, holds []driver.Hold, end time.Time) (inTime bool) {
	t.Helper()
	for _, h := range holds {
		rival := request(h.Name, h.TTL)
		if rival.Mode = h.Mode; h.Mode == driver.Read {
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

// lockRow locks a name's row, like an administrator's open transaction.
func lockRow(t *testing.T, db *sql.DB, table, name string) (unlock func()) {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	var n int
	where := "name = ?"
	if table == strategies[0].table {
		where = "k = UNHEX(SHA2(?, 256))"
	}
	if err := tx.QueryRow("SELECT 1 FROM "+table+" FORCE INDEX (PRIMARY) WHERE "+where+" FOR UPDATE", name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

// A call on a locked row ends with its context. It leaves no statement behind that would be executed
// later.
func TestCallsOnALockedRow(t *testing.T) {
	t.Parallel()
	for _, s := range leaseStrategies {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			url, db := freshDatabase(t, s)
			b := connect(t, url)
			r := request("stuck", long)
			take(t, b, r)
			defer lockRow(t, db, b.database.opts.Table, r.Name)()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 2)
			go func() { _, err := b.Acquire(ctx, r); done <- err }()
			go func() { done <- b.Release(ctx, r.Hold) }()
			writes := "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND <> 'Sleep' AND INFO NOT LIKE 'SELECT%'"
			until(t, "a call waits for the row", func() bool { return ask(t, db, writes) > 0 })
			cancel()
			for range 2 {
				if err := <-done; err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
					t.Errorf("%v; want unknown", err)
				}
			}
			until(t, "no statement is left", func() bool { return ask(t, db, writes) == 0 })
		})
	}
}

// A hold that is renewed alone waits a little for its row. Other owners may change that row often, and
// take long to commit.
func TestRenewWaitsForItsOwnRow(t *testing.T) {
	t.Parallel()
	url, db := freshDatabase(t, Row)
	b := connect(t, url)
	mine := request("mine", long)
	take(t, b, mine)
	until(t, "the hold is renewed though its row was locked", func() bool {
		unlock := lockRow(t, db, b.database.opts.Table, mine.Name)
		defer unlock()
		time.AfterFunc(300*time.Millisecond, unlock)
		return b.Renew(t.Context(), []driver.Hold{mine.Hold})[0] == nil
	})
}
