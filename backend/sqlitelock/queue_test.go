package sqlitelock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
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
	info, err := b.Inspect(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
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
	b.w.clock.now = func() int64 { return now }
	holder := request("x", driver.Counted, 10*time.Second)
	holder.Limit = 1
	expired, alive := holder, holder
	expired.Owner, expired.TTL, expired.Queue = driver.NewOwner(), time.Second, true
	alive.Owner, alive.TTL, alive.Queue = driver.NewOwner(), time.Minute, true
	take(t, b, holder)
	refused(t, b, expired)
	refused(t, b, alive)
	free(t, b, holder)
	if held := refused(t, b, alive); held.Retry != time.Second {
		t.Errorf("Retry %v; want the expired place's end in 1s", held.Retry)
	}
	now = int64(time.Second)
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
	if err := b.List(t.Context(), "", func(name string) bool { first = append(first, name); return len(first) < 2 }); err != nil {
		t.Fatal(err)
	}
	if strings.Join(first, " ") != "a a:00000" {
		t.Errorf("listed %q after yield said stop at the second", first)
	}
}

// TestRenewMany renews more holds than fit in a transaction, some of them lost.
func TestRenewMany(t *testing.T) {
	b := connect(t, lockFile(t))
	var holds []driver.Hold
	for i := range 3*renewBatch + 1 {
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
