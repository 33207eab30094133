package quorum_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Each backend has connections of its own to five independent stores. A cut connection reaches none.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5} {
		t.Run(string(rune('0'+n)), func(t *testing.T) {
			conform(t, n)
		})
	}
}

func conform(t *testing.T, n int) {
	stores := make([]*memlock.Store, n)
	for i := range stores {
		stores[i] = memlock.NewStore()
	}
	var wires sync.Map
	drivertest.Run(t, drivertest.Harness{
		TTL: 1500 * time.Millisecond, // two rounds at five members must be over long before, on a busy machine too
		Open: func(context.Context) (driver.Backend, error) {
			w := newWire(n)
			members := make([]driver.Backend, n)
			for i, s := range stores {
				members[i] = w.to(i, s.Connect())
			}
			b, err := quorum.New(members, &quorum.Options{MemberTimeout: 10 * time.Second})
			if err == nil {
				wires.Store(b, w)
			}
			return b, err
		},
		Cut: func(b driver.Backend) func() {
			w, _ := wires.Load(b)
			w.(*wire).cut()
			return w.(*wire).restore
		},
	})
}

// Members that refuse everything for a moment end nothing for good.
func TestRefused(t *testing.T) {
	t.Parallel()
	drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
		c := newCluster(t, 3)
		var wires []*wire
		return drivertest.Harness{
			Except: []string{"refused/release"}, // a release goes on in the background
			Open: func(context.Context) (driver.Backend, error) {
				b, w := c.process()
				wires = append(wires, w)
				return b, nil
			},
			Withdraw: func() (restore func()) {
				for _, w := range wires {
					w.kill()
				}
				return func() {
					for _, w := range wires {
						w.restore()
					}
				}
			},
		}
	})
}

func client(t testing.TB, b driver.Backend, opts *distlock.Options) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(b, opts))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// empty fails the test unless all members are empty.
func (c *cluster) empty() {
	c.t.Helper()
	for i, s := range c.stores {
		s.Connect().List(context.Background(), "", func(name string) bool {
			c.t.Errorf("member %d still keeps %q", i, name)
			return true
		})
	}
}

// Waiters of one process get the lock by hand-off, each with a fence of its own from a span that
// a majority has reserved.
func TestHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 5)
		b, w := cl.process()
		c := client(t, b, nil)
		first := must.Get(c.Mutex("lock").Lock(t.Context()))(t)
		var wg sync.WaitGroup
		var last atomic.Uint64
		for range 20 {
			wg.Go(func() {
				lease, err := c.Mutex("lock").Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if f := lease.Fence(); f <= last.Swap(f) {
					t.Errorf("fence %d is not above the one before", f)
				}
				lease.Unlock(t.Context())
			})
		}
		synctest.Wait()
		last.Store(first.Fence())
		before := w.calls.Load()
		first.Unlock(t.Context())
		wg.Wait()
		synctest.Wait()
		if n := w.calls.Load() - before; n > 10 {
			t.Errorf("20 hand-offs and a release made %d calls, want 5", n)
		}
		next, err := c.Mutex("lock").Lock(t.Context())
		if err != nil || next.Fence() <= last.Load() {
			t.Errorf("then fence %d after %d: %v", next.Fence(), last.Load(), err)
		}
		c.Close()
		cl.empty()
	})
}

// A lease lives while a majority lives. When that fails the lease is lost in time, before another
// client could hold.
func TestLeaseEndsWithTheMajority(t *testing.T) {
	for name, fault := range map[string]func(*wire, ...int){"dead": (*wire).kill, "silent": (*wire).cut} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 5)
				b, w := cl.process()
				c := client(t, b, &distlock.Options{TTL: 10 * time.Second})
				lease := must.Get(c.Mutex("lock").Lock(t.Context()))(t)
				fault(w, 1, 4)
				time.Sleep(time.Minute)
				if lease.Err() != nil {
					t.Fatalf("with three of five: %v", lease.Err())
				}
				fault(w, 0)
				began := time.Now()
				<-lease.Context().Done()
				took := time.Since(began)
				if err := context.Cause(lease.Context()); !errors.Is(err, distlock.ErrLost) || took > 10*time.Second {
					t.Errorf("with two of five: %v after %v", err, took)
				}
				other, _ := cl.process()
				expect.Be(t, expect.Err(other.Acquire(t.Context(), requestFor("lock"))), driver.ErrHeld, "another at that moment")
				began = time.Now()
				c.Close()
				within(t, "Close", began, 20*time.Second)
			})
		})
	}
}

func requestFor(name string) driver.Request {
	r := request(driver.Exclusive)
	r.Name = name
	return r
}

// Answers and requests are lost at random, members come and go. There is one holder at a time,
// fences increase, and in the end no member keeps a hold.
func TestLostRepliesFuzz(t *testing.T)     { loseReplies(t, 15*time.Second) }
func TestLongLostRepliesFuzz(t *testing.T) { loseReplies(t, time.Minute) }

func loseReplies(t *testing.T, length time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 5)
		var inside atomic.Int32
		var last atomic.Uint64
		var wires []*wire
		var clients []*distlock.Client
		turns := 0
		var wg sync.WaitGroup
		for range 4 {
			b, w := cl.process()
			w.loss.Store(10)
			wires = append(wires, w)
			clients = append(clients, client(t, b, &distlock.Options{TTL: 3 * time.Second}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), length)
		for i, c := range clients {
			wg.Go(func() {
				for ctx.Err() == nil {
					fuzzTurn(ctx, t, c, &inside, &last, &turns)
				}
			})
			wg.Go(func() { trouble(ctx, wires[i]) })
		}
		wg.Wait()
		cancel()
		for _, w := range wires {
			w.loss.Store(0)
			w.restore()
		}
		for _, c := range clients {
			c.Close()
		}
		time.Sleep(10 * time.Second)
		cl.empty()
		t.Logf("%d turns", turns)
		if turns < int(length/time.Second) {
			t.Errorf("only %d turns", turns)
		}
	})
}

func fuzzTurn(ctx context.Context, t *testing.T, c *distlock.Client, inside *atomic.Int32, last *atomic.Uint64, turns *int) {
	lease, err := c.Mutex("lock").Lock(ctx)
	if err != nil {
		return
	}
	expect.Equal(t, inside.Add(1), 1, "two holders at once")
	*turns++
	if f := lease.Fence(); f <= last.Swap(f) {
		t.Errorf("fence %d is not above the one before", f)
	}
	select {
	case <-time.After(rand.N(200 * time.Millisecond)):
	case <-lease.Context().Done():
	}
	inside.Add(-1)
	lease.Unlock(context.WithoutCancel(ctx))
}

// trouble cuts off one or two members now and then.
func trouble(ctx context.Context, w *wire) {
	for ctx.Err() == nil {
		w.restore()
		time.Sleep(rand.N(4 * time.Second))
		w.cut(rand.N(5))
		w.kill(rand.N(5))
		time.Sleep(rand.N(2 * time.Second))
	}
}
