package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A wait that is given up leaves nothing on the server: neither a place in its queue nor the
// lock that it was about to get.
func TestAdvisoryWaitersLeaveNoGhosts(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
		a, b := open(t, url), open(t, url)
		mine := request("lock")
		take(t, a, mine)
		w, err := b.Watch(t.Context(), request("lock"))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "b waits", func() bool { return blocked(t, pg, url) == "1" })
		w.Close()
		if n := blocked(t, pg, url); n != "0" {
			t.Errorf("%s wait after Close", n)
		}
		release(t, a, mine)
		for _, other := range []*Backend{a, b} {
			next := request("lock")
			take(t, other, next)
			release(t, other, next)
		}
	})
}

// PostgreSQL may answer that a wait is over and have granted the lock all the same. Of hundreds
// of waits that end at the moment of a grant none keeps anything.
func TestAdvisoryWaitsInBulkKeepNothing(t *testing.T) { waitsInBulk(t, 25) }

func TestLongAdvisoryWaitsInBulkKeepNothing(t *testing.T) { waitsInBulk(t, 150) }

func waitsInBulk(t *testing.T, times int) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
		a, b := open(t, url), open(t, url)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				name, from, to := fmt.Sprint("lock", i%2), a, b
				if i%4 < 2 {
					from, to = b, a
				}
				for range times {
					shortWait(t, from, to, name)
				}
			})
		}
		all.Wait()
		eventually(t, "nothing is held or waited for", func() bool { return lockers(t, pg, url) == "0" })
		for _, name := range []string{"lock0", "lock1"} {
			r := request(name)
			take(t, a, r)
			release(t, a, r)
		}
	})
}

// shortWait holds a lock for a moment, if it is free, and waits about as long elsewhere.
func shortWait(t *testing.T, from, to *Backend, name string) {
	held, wanted := request(name), request(name)
	_, err := from.Acquire(t.Context(), held)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Errorf("acquire: %v", err)
	}
	w, watching := to.Watch(t.Context(), wanted)
	if watching != nil && !errors.Is(watching, driver.ErrSkip) {
		t.Errorf("watch: %v", watching)
	}
	time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that some come too late
	var both sync.WaitGroup
	if err == nil {
		both.Go(func() {
			if err := from.Release(context.Background(), held.Hold); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	if watching == nil {
		both.Go(func() {
			w.Close()
			if err := to.Release(context.Background(), wanted.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("release of what a wait may have brought: %v", err)
			}
		})
	}
	both.Wait()
}

// The server ends what a holder has who is cut off, at the end of his TTL and not before: by
// then he has been told.
func TestAdvisoryHolderIsPartitioned(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
		net := faultproxy.New(t, pg.Addr())
		a, b := open(t, strings.Replace(url, pg.Addr(), net.Addr(), 1)), open(t, url)
		mine, theirs := brief("lock", 2*time.Second), brief("lock", 2*time.Second)
		lost := make(chan time.Time, 1)
		mine.OnLost = func() { lost <- time.Now() }
		take(t, a, mine)
		w := watch(t, b, theirs)
		eventually(t, "b waits", func() bool { return blocked(t, pg, url) == "1" })
		net.Silence()
		if errs := a.Renew(t.Context(), []driver.Hold{mine.Hold}); errs[0] == nil {
			t.Error("renewed without a network")
		}
		ready(t, w)
		had := time.Now()
		take(t, b, theirs)
		within(t, "the hold", func(context.Context) {
			if late := (<-lost).Sub(had); late > mine.TTL { // it should be told before, but this process may be slow
				t.Errorf("the holder was told %v after the next had the lock", late)
			}
		})
	})
}

// Close returns without a network, with a hold, a wait and a call under way.
func TestAdvisoryCloseWithoutANetwork(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, pg *testserver.PostgresServer, url string) {
		net := faultproxy.New(t, pg.Addr())
		a, err := Open(t.Context(), strings.Replace(url, pg.Addr(), net.Addr(), 1))
		if err != nil {
			t.Fatal(err)
		}
		take(t, a, request("lock"))
		if _, err := a.Watch(t.Context(), request("lock")); err != nil {
			t.Fatal(err)
		}
		net.Silence()
		answer := make(chan error, 1)
		other := brief("other", time.Hour) // which needs a new connection
		go func() {
			_, err := a.Acquire(context.Background(), other)
			answer <- err
		}()
		eventually(t, "the call is under way", func() bool { return a.database.db.Stats().OpenConnections > 0 })
		within(t, "Close", func(context.Context) { a.Close() })
		within(t, "Acquire", func(context.Context) {
			if err := <-answer; !errors.Is(err, driver.ErrClosed) {
				t.Errorf("Acquire: %v", err)
			}
		})
	})
}
