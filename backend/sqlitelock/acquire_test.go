package sqlitelock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func queue(name string, mode driver.Mode, ttl time.Duration) driver.Request {
	r := request(name, mode, ttl)
	r.Queue = true
	return r
}

// Queued readers that follow only readers enter together. No request passes the queue.
func TestQueue(t *testing.T) {
	b := connect(t, lockFile(t))
	w1, w2 := request("x", driver.Write, long), queue("x", driver.Write, long)
	r1, r2, r3 := queue("x", driver.Read, long), queue("x", driver.Read, long), queue("x", driver.Read, long)
	take(t, b, w1)
	for _, r := range []driver.Request{r1, r2, w2, r3} {
		refused(t, b, r)
	}
	info := must.Get(b.Inspect(t.Context(), "x"))(t)
	order := []string{r1.Owner, r2.Owner, w2.Owner, r3.Owner}
	if got := owners(info.Waiters); !slices.Equal(got, order) || info.WaiterCount != 4 {
		t.Errorf("queue %v; want %v", got, order)
	}
	free(t, b, w1)
	take(t, b, r2)
	take(t, b, r1)
	if held := refused(t, b, r3); len(held.Holders) != 1 || held.Holders[0].Owner != w2.Owner {
		t.Errorf("in the way: %+v; want the queued writer", held.Holders)
	}
	free(t, b, w2)
	take(t, b, r3)
}

func owners(hs []driver.Holder) []string {
	var o []string
	for _, h := range hs {
		o = append(o, h.Owner)
	}
	return o
}

// An expired claim in the queue is ahead of a live one.
func TestExpiredPlace(t *testing.T) {
	var now int64
	path := lockFile(t)
	b := openAt(t, path, "boot", 0)
	b.store.w.clock.now = func() int64 { return now }
	holder := request("x", driver.Counted, 10*time.Second)
	holder.Limit = 1
	expired, alive := holder, holder
	expired.Owner, expired.TTL, expired.Queue = driver.NewOwner(), time.Second, true
	alive.Owner, alive.TTL, alive.Queue = driver.NewOwner(), time.Minute, true
	take(t, b, holder)
	refused(t, b, expired)
	refused(t, b, alive)
	free(t, b, holder)
	if held := refused(t, b, alive); held.Retry < time.Second || held.Retry > 2*time.Second {
		t.Errorf("Retry %v; want the expired place's end in 1s", held.Retry)
	}
	now = int64(3 * time.Second)
	take(t, b, alive)
	wantIs(t, b.Release(t.Context(), expired.Hold), driver.ErrLost)
}

func TestList(t *testing.T) {
	b := connect(t, lockFile(t))
	var want []string
	for i := range 2*claims.ListPage + 1 {
		want = append(want, fmt.Sprintf("a:%05d", i))
		take(t, b, request(want[i], driver.Read, long))
		if i%100 == 0 {
			take(t, b, request(want[i], driver.Read, long))
		}
	}
	take(t, b, request("a", driver.Read, long))
	take(t, b, request("a;", driver.Read, long))
	gone := request("a:gone", driver.Read, long)
	take(t, b, gone)
	free(t, b, gone)
	var got []string
	err := b.List(t.Context(), "a:", func(name string) bool {
		got = append(got, name)
		_, err := b.Inspect(t.Context(), name)
		return err == nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %d names, %v; want %d", len(got), err, len(want))
	}
	var first []string
	must.OK(t, b.List(t.Context(), "", func(name string) bool { first = append(first, name); return len(first) < 2 }))
	if strings.Join(first, " ") != "a a:00000" {
		t.Errorf("listed %q after yield said stop at the second", first)
	}
}

// TestRenewMany renews more holds than fit in a transaction, some of them lost.
func TestRenewMany(t *testing.T) {
	b := connect(t, lockFile(t))
	var holds []driver.Hold
	for i := range 1000 {
		r := request(fmt.Sprint("x", i), driver.Exclusive, long)
		if i%10 != 0 {
			take(t, b, r)
		}
		holds = append(holds, r.Hold)
	}
	answers := b.Renew(t.Context(), holds)
	if len(answers) != len(holds) {
		t.Fatalf("%d answers for %d holds", len(answers), len(holds))
	}
	for i, err := range answers {
		if i%10 == 0 {
			wantIs(t, err, driver.ErrLost)
		} else if err != nil {
			t.Errorf("hold %d: %v", i, err)
		}
	}
}

// ahead returns a fence one hour ahead of the clock. For a later grant this looks as if the clock was
// set back by an hour.
func ahead() uint64 { return uint64(time.Now().Add(time.Hour).UnixMicro()) << claims.SpanBits }

func TestFencesAfterClockWentBack(t *testing.T) {
	b := connect(t, lockFile(t))
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	r.Floor = ahead()
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
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
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
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
	must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
	sweep := func() {
		t.Helper()
		must.OK(t, b.store.w.do(t.Context(), func(*job) error {
			return new(sweeper).step(&b.store.w.stmts, int64(r.Floor>>claims.SpanBits)+2, b.store.w.clock.micros())
		}))
	}
	sweep()
	refused(t, b, request("x", driver.Exclusive, long))
	free(t, b, r)
	sweep()
	must.Equal(t, rows(t, b), 0, "rows after a sweep")
	if g := take(t, b, request("x", driver.Exclusive, long)); g.Fence <= r.Floor {
		t.Errorf("fence %d after %d", g.Fence, r.Floor)
	}
}

func rows(t *testing.T, b *Backend) int {
	t.Helper()
	var n int
	must.OK(t, b.store.db.QueryRow("SELECT count(*) FROM locks").Scan(&n))
	return n
}

// TestSweepKeepsPace uses a new name for each lock.
func TestSweepKeepsPace(t *testing.T) {
	b := connect(t, lockFile(t))
	held := request("held", driver.Exclusive, long)
	take(t, b, held)
	must.OK(t, b.store.w.do(t.Context(), func(*job) error { b.store.w.sweep.idle = 0; return nil }))
	for i := range 4 * sweepStep {
		r := request(fmt.Sprint("order:", i), driver.Exclusive, long)
		take(t, b, r)
		free(t, b, r)
		b.store.w.turn <- struct{}{}
		b.store.w.commits = 0 // the sweep alone calls for the goroutine
		<-b.store.w.turn
	}
	if n := rows(t, b); n > 2*sweepStep {
		t.Errorf("%d rows for one name in use", n)
	}
	expect.OK(t, b.Renew(context.Background(), []driver.Hold{held.Hold})[0], "a held lock was swept")
}
