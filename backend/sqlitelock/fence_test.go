package sqlitelock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// ahead returns a fence one hour ahead of the clock. For a later grant this looks as if the clock was
// set back by an hour.
func ahead() uint64 { return uint64(time.Now().Add(time.Hour).UnixMicro()) << claims.SpanBits }

func TestFencesAfterClockWentBack(t *testing.T) {
	b := connect(t, lockFile(t))
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	r.Floor = ahead()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatal(err)
	}
	for last := r.Floor; last < r.Floor+3*claims.Span; {
		g := take(t, b, r)
		if g.Fence <= last {
			t.Fatalf("fence %d after %d", g.Fence, last)
		}
		last = g.Last()
	}
}

func TestFencesAfterLostFile(t *testing.T) {
	r := request("x", driver.Exclusive, long)
	r.Fences = claims.Span
	was := take(t, connect(t, lockFile(t)), r)
	if now := take(t, connect(t, lockFile(t)), r); now.Fence <= was.Last() {
		t.Errorf("fence %d after %d", now.Fence, was.Last())
	}
}

func TestFenceSpans(t *testing.T) {
	b := connect(t, lockFile(t))
	for _, c := range []struct {
		mode               driver.Mode
		requested, granted uint64
	}{
		{driver.Exclusive, 128, 128}, {driver.Exclusive, 0, 1}, {driver.Exclusive, 5000, claims.Span},
		{driver.Write, 128, 128}, {driver.Read, 128, 1}, {driver.Counted, 128, 1},
	} {
		r := request(fmt.Sprint(c), c.mode, long)
		r.Fences = c.requested
		if g := take(t, b, r); g.Fences != c.granted {
			t.Errorf("%v requested %d: got %d; want %d", c.mode, c.requested, g.Fences, c.granted)
		}
	}
}

func TestFencesUsedUp(t *testing.T) {
	b := connect(t, lockFile(t))
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	r.Floor = 1<<63 - 1
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatal(err)
	}
	_, err := b.Acquire(t.Context(), r)
	wantIs(t, err, driver.ErrInvalid)
	r.Floor = 1 << 63
	wantIs(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrInvalid)
}

func TestSweptNameKeepsItsFences(t *testing.T) {
	b := connect(t, lockFile(t))
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	r.Floor = ahead()
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Fatal(err)
	}
	sweep := func() {
		t.Helper()
		if err := b.w.do(t.Context(), false, func(t *tx) error {
			return new(sweeper).step(t.statements, int64(r.Floor>>claims.SpanBits), t.clock.now())
		}); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	refused(t, b, request("x", driver.Exclusive, long))
	free(t, b, r)
	sweep()
	if n := rows(t, b); n != 0 {
		t.Fatalf("%d rows after a sweep; want 0", n)
	}
	if g := take(t, b, request("x", driver.Exclusive, long)); g.Fence <= r.Floor {
		t.Errorf("fence %d after %d", g.Fence, r.Floor)
	}
}

func rows(t *testing.T, b *Backend) int {
	t.Helper()
	var n int
	if err := b.db.QueryRow("SELECT count(*) FROM locks").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSweepKeepsPace uses a new name for each lock.
func TestSweepKeepsPace(t *testing.T) {
	b := connect(t, lockFile(t))
	held := request("held", driver.Exclusive, long)
	take(t, b, held)
	if err := b.w.do(t.Context(), true, func(*tx) error { b.w.sweep.idle = 0; return nil }); err != nil {
		t.Fatal(err)
	}
	for i := range 4 * sweepStep {
		r := request(fmt.Sprint("order:", i), driver.Exclusive, long)
		take(t, b, r)
		free(t, b, r)
	}
	if n := rows(t, b); n > 2*sweepStep {
		t.Errorf("%d rows for one name in use", n)
	}
	if err := b.Renew(context.Background(), []driver.Hold{held.Hold})[0]; err != nil {
		t.Errorf("a held lock was swept: %v", err)
	}
}
