package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// acquireQueued stands in line until the request is granted, as the core does.
func acquireQueued(ctx context.Context, b *Backend, r driver.Request) (driver.Grant, error) {
	r.Queue = true
	g, err := b.Acquire(ctx, r)
	if !errors.Is(err, driver.ErrHeld) {
		return g, err
	}
	w, err := b.Watch(ctx, r)
	if err != nil {
		return g, err
	}
	defer w.Close()
	for {
		g, err := b.Acquire(ctx, r)
		if !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
		select {
		case <-w.Ready:
		case <-time.After(testTimeout):
			return g, errors.New("not signalled")
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
}

// One client, and one session, can have many holders and waiters of one lock.
func TestOneHolderAtATimeOnOneClient(t *testing.T) {
	client := newClient(t, testserver.SharedEtcd(t).Addr())
	one := backendOf(t, client, nil)
	for _, c := range []struct {
		name string
		open func() *Backend
	}{
		{"one backend", func() *Backend { return one }},
		{"a backend each", func() *Backend { return backendOf(t, client, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := request("", driver.Exclusive).Name
			var holders, turns atomic.Int32
			var last atomic.Uint64
			var wg sync.WaitGroup
			for range 16 {
				b := c.open()
				wg.Go(func() {
					for range 6 {
						r := request(name, driver.Exclusive)
						g, err := acquireQueued(t.Context(), b, r)
						if err != nil {
							t.Error(err)
							return
						}
						if n := holders.Add(1); n > 1 {
							t.Errorf("%d hold at once", n)
						}
						if g.Fence <= last.Swap(g.Fence) {
							t.Errorf("fence %d is not above the last", g.Fence)
						}
						turns.Add(1)
						time.Sleep(2 * time.Millisecond)
						holders.Add(-1)
						if err := b.Release(t.Context(), r.Hold); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if turns.Load() != 16*6 && !t.Failed() {
				t.Errorf("%d turns, want %d", turns.Load(), 16*6)
			}
		})
	}
}

// Of many that try a lock which was just released exactly one gets it: nobody's try is in
// another's way. concurrency.Mutex lets nobody win nearly always.
func TestTriesRaceForOneWinner(t *testing.T) {
	backends := []*Backend{shared(t), shared(t), shared(t)}
	name := request("", driver.Exclusive).Name
	for round := range 50 {
		before := request(name, driver.Exclusive)
		acquire(t, backends[0], before)
		var won [32]driver.Request
		var winners atomic.Int32
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range won {
			b := backends[i%len(backends)]
			wg.Go(func() {
				<-start
				r := request(name, driver.Exclusive)
				switch _, err := b.Acquire(t.Context(), r); {
				case err == nil:
					won[i] = r
					winners.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Error(err)
				}
			})
		}
		release(t, backends[0], before)
		close(start)
		wg.Wait()
		if winners.Load() != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, winners.Load())
		}
		i := slices.IndexFunc(won[:], func(r driver.Request) bool { return r.Owner != "" })
		if left := storedKeys(t, backends[0], name); len(left) != 1 || left[0].owner != won[i].Owner {
			t.Fatalf("round %d: the losers left keys: %v", round, left)
		}
		release(t, backends[i%len(backends)], won[i])
	}
}

// Who waits is let in soon after the release, also if it began to wait a moment before
// and others write meanwhile. concurrency.Mutex takes up to 100 ms.
func TestHandoffIsQuick(t *testing.T) {
	holder, waiter, other := shared(t), shared(t), shared(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond) // 200 a second
		defer tick.Stop()
		for ctx.Err() == nil {
			other.client.Put(ctx, "noise", "x")
			<-tick.C
		}
	})
	var took, pairs []time.Duration
	for range 100 {
		r, next := request("", driver.Exclusive), request("", driver.Exclusive)
		next.Name = r.Name
		acquire(t, holder, r)
		released := make(chan time.Time, 1)
		time.AfterFunc(8*time.Millisecond, func() {
			released <- time.Now()
			if err := holder.Release(ctx, r.Hold); err != nil {
				t.Error(err)
			}
		})
		if _, err := acquireQueued(ctx, waiter, next); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(<-released))
		release(t, waiter, next)
		start := time.Now()
		free := request("", driver.Exclusive)
		acquire(t, waiter, free)
		release(t, waiter, free)
		pairs = append(pairs, time.Since(start))
	}
	stop()
	wg.Wait()
	slices.Sort(took)
	slices.Sort(pairs)
	p50, p99, pair := took[len(took)/2], took[len(took)*99/100], pairs[len(pairs)/2]
	t.Logf("from the release to the waiter's grant: p50 %v, p99 %v; a free lock is taken and released in %v", p50, p99, pair)
	if p50 > 40*time.Millisecond+5*pair {
		t.Errorf("p50 %v: half of the waiters were not told", p50)
	}
}
