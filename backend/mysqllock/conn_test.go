package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestConformanceOfSession(t *testing.T) {
	t.Parallel()
	conform(t, Session)
}

// A hold of ForUpdate has a connection of its own, and some checks have hundreds at once.
func TestConformanceOfForUpdate(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{Args: []string{"--max-connections=2000"}})
	url := srv.Database(t) + "?create=true&strategy=forupdate"
	drivertest.Run(t, drivertest.Harness{
		Open:    func(ctx context.Context) (driver.Backend, error) { return Open(ctx, url) },
		Timeout: 3 * time.Minute, Parallel: 4,
	})
}

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

// Who comes too late for a name that nobody has ever locked is refused as soon as for any other.
func TestFirstLocksOfANameDoNotWait(t *testing.T) {
	url, _ := freshDatabase(t, ForUpdate)
	var all []*Backend
	for range 4 {
		all = append(all, connect(t, url))
	}
	for i := range 20 {
		name := fmt.Sprint("first/", i)
		var wg sync.WaitGroup
		for _, b := range all {
			wg.Go(func() {
				began := time.Now()
				_, err := b.Acquire(t.Context(), request(name, time.Hour))
				if took := time.Since(began); took > 45*time.Second || err != nil && !errors.Is(err, driver.ErrHeld) { // InnoDB waits for 50 s
					t.Errorf("%s: after %v: %v", name, took, err)
				}
			})
		}
		wg.Wait()
	}
}

// bothOnConnections runs a test for each strategy that holds connections.
func bothOnConnections(t *testing.T, test func(t *testing.T, s Strategy)) {
	for _, s := range []Strategy{Session, ForUpdate} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// A server that has started again gives its connections the same numbers as before. Those of
// others are not ended in place of the links that went with the old one.
func TestRestartedServerKillsNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.MariaDB(t, testserver.MariaDBOptions{})
	url := srv.Database(t)
	backends := map[*Backend]driver.Request{}
	var lost sync.WaitGroup
	for _, s := range []Strategy{Session, ForUpdate} {
		b, r := connect(t, url+"?create=true&strategy="+string(s)), request("x", long)
		lost.Add(1)
		r.OnLost = lost.Done
		take(t, b, r)
		backends[b] = r
	}
	srv.Kill()
	lost.Wait()
	srv.Start()
	db := srv.DB(t, url)
	var others []*sql.Conn
	for range 60 {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		others = append(others, c)
	}
	for b, r := range backends {
		wantIs(t, b.Release(t.Context(), r.Hold), driver.ErrLost)
	}
	for i, c := range others {
		if _, err := c.ExecContext(t.Context(), "DO 1"); err != nil {
			t.Errorf("somebody else's connection %d: %v", i, err)
		}
	}
}

// The smallest pool that a strategy takes has a connection for others all the time.
func TestSmallestPool(t *testing.T) {
	const least = 3
	bothOnConnections(t, func(t *testing.T, s Strategy) {
		srv := testserver.SharedMariaDB(t)
		db := srv.DB(t, srv.Database(t))
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		db.SetMaxOpenConns(least - 1)
		if b, err := New(ctx, db, &Options{Strategy: s, Create: true}); !errors.Is(err, driver.ErrInvalid) {
			t.Fatalf("with %d connections: %v, %v; want ErrInvalid", least-1, b, err)
		}
		db.SetMaxOpenConns(least)
		b, err := New(ctx, db, &Options{Strategy: s, Create: true})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ping := func() error {
			soon, cancel := context.WithTimeout(ctx, 8*time.Second) // spares are kept for longer
			defer cancel()
			return db.PingContext(soon)
		}
		if err := ping(); err != nil {
			t.Errorf("after New: %v", err)
		}
		r := request("x", 30*time.Second)
		take(t, b, r)
		if err := ping(); err != nil {
			t.Errorf("beside a hold: %v", err)
		}
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Error(err)
		}
	})
}
