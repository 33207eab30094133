package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// An administrator's transaction keeps one row locked. Its hold is unknown. Ten other holds, renewed by
// the same calls, live on for longer than their TTL.
func TestHoldsBesideALockedRow(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			plain := testserver.SharedPostgres(t).Database(t)
			url := with(t, plain, "create", "true")
			b, other := open(t, url), open(t, url)
			besideALockedRow(t, b, other, testserver.SharedPostgres(t).DB(t, plain), mode)
		})
	}
}

func besideALockedRow(t *testing.T, b, other *Backend, db *sql.DB, mode driver.Mode) {
	const rounds = 5
	ttl := 1500 * time.Millisecond // doubled at first, and again on a slow machine
	holds := make([]driver.Hold, 10)
	for i := range holds {
		holds[i] = driver.Hold{Name: fmt.Sprint("job ", i), Owner: driver.NewOwner(), Mode: mode, TTL: ttl}
	}
	stuck := request("stuck")
	stuck.Mode, stuck.TTL = mode, time.Hour
	take(t, b, stuck)
	tx := lockRow(t, db, stuck.Name)
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
	tx.Rollback()
	eventually(t, "the hold is renewed when its row is free", func() bool { return b.Renew(t.Context(), []driver.Hold{stuck.Hold})[0] == nil })
}

// renewBeside renews holds, one of which has a locked row, and wants the call to return in time.
func renewBeside(t *testing.T, b *Backend, holds []driver.Hold) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
func refusedInTime(t *testing.T, b *Backend, holds []driver.Hold, end time.Time) (inTime bool) {
	t.Helper()
	for _, h := range holds {
		rival := request(h.Name)
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

// Locked rows do not exhaust the pool: another hold is renewed while as many attempts as the pool has
// connections wait for locked rows.
func TestLongPoolBesideLockedRows(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	b := open(t, with(t, plain, "create", "true"))
	mine := request("mine")
	take(t, b, mine)
	db := testserver.SharedPostgres(t).DB(t, plain)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := make(chan struct{})
	for i := range 2 * maxConns {
		r := request(fmt.Sprint("locked ", i))
		take(t, b, r)
		release(t, b, r)
		lockRow(t, db, r.Name)
		go func() {
			defer func() { attempts <- struct{}{} }()
			for ctx.Err() == nil {
				_, _ = b.Acquire(ctx, r)
			}
		}()
	}
	defer func() {
		cancel()
		for range 2 * maxConns {
			<-attempts
		}
	}()
	eventually(t, "all connections are in use", func() bool { return b.database.db.Stats().InUse >= maxConns })
	bounded, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for range 3 {
		if err := b.Renew(bounded, []driver.Hold{mine.Hold})[0]; err != nil {
			t.Fatal(err)
		}
	}
}

// lockRow locks a name's row, like an administrator's open transaction.
func lockRow(t *testing.T, db *sql.DB, name string) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	if err := tx.QueryRow("SELECT 1 FROM distlock_locks WHERE name = $1 FOR UPDATE", name).Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A hold that is renewed alone waits a little for its row. Other owners may change that row often, and
// take long to commit.
func TestRenewWaitsForItsOwnRow(t *testing.T) {
	t.Parallel()
	plain := testserver.SharedPostgres(t).Database(t)
	b := open(t, with(t, plain, "create", "true"))
	mine := request("mine")
	take(t, b, mine)
	db := testserver.SharedPostgres(t).DB(t, plain)
	eventually(t, "the hold is renewed though its row was locked", func() bool {
		tx := lockRow(t, db, mine.Name)
		defer tx.Rollback()
		time.AfterFunc(300*time.Millisecond, func() { tx.Rollback() })
		return b.Renew(t.Context(), []driver.Hold{mine.Hold})[0] == nil
	})
}
