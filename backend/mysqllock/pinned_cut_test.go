package mysqllock

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// A holder that is cut off stops trusting before the server gives its lock to the next.
func TestHolderIsCutOff(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		source, _ := freshDatabase(t, s)
		u, err := url.Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		p := faultproxy.New(t, u.Host)
		u.Host = p.Addr()
		first, next := clientOf(t, connect(t, u.String())), clientOf(t, connect(t, source))
		lease, err := first.Mutex("x", distlock.WithTTL(3*time.Second)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.Silence()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		other, err := next.Mutex("x").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Err() == nil {
			t.Errorf("the first trusts its lock until %v, and the next has it", lease.Deadline())
		}
		if other.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", other.Fence(), lease.Fence())
		}
	})
}

func clientOf(t *testing.T, b driver.Backend) *distlock.Client {
	t.Helper()
	c, err := distlock.New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Waits that were given up leave nothing behind that has the lock.
func TestCancelledWaitersLeaveNoGhosts(t *testing.T) {
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		source, db := freshDatabase(t, s)
		holder, waiters := connect(t, source), clientOf(t, connect(t, source))
		r := request("x", long)
		take(t, holder, r)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+5*i)*time.Millisecond)
				defer cancel()
				if l, err := waiters.Mutex("x").Lock(ctx); err == nil {
					l.Unlock(t.Context()) // it came when the holder released
				}
			})
		}
		time.AfterFunc(100*time.Millisecond, func() { holder.Release(context.Background(), r.Hold) })
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		l, err := clientOf(t, connect(t, source)).Mutex("x").Lock(ctx)
		if err != nil {
			t.Fatalf("the lock is free, and nobody gets it: %v", err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if n := ask(t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT GET_LOCK%' AND DB = DATABASE()"); n > 0 {
			t.Errorf("%d statements still wait", n)
		}
	})
}
