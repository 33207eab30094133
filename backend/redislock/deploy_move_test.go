package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// usable is how soon locks must work again after whatever happened to the servers. A
// failover itself takes a few seconds.
const usable = 2 * time.Minute

// busy locks and unlocks a name without pause until stopped, and renews a lease.
type busy struct {
	pairs atomic.Int64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func keepBusy(t *testing.T, b *Backend, names ...string) *busy {
	ctx, cancel := context.WithCancel(t.Context())
	u := &busy{stop: cancel}
	for _, name := range names {
		u.wg.Go(func() {
			for ctx.Err() == nil {
				u.pair(ctx, b, name)
			}
		})
	}
	t.Cleanup(func() { cancel(); u.wg.Wait() })
	return u
}

// pair is as the core does it: calls are bounded, and what is unknown is released.
func (u *busy) pair(ctx context.Context, b *Backend, name string) {
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r := request(name, driver.Exclusive)
	r.TTL = time.Second
	_, err := b.Acquire(call, r)
	if err == nil {
		u.pairs.Add(1)
	} else {
		time.Sleep(10 * time.Millisecond)
	}
	if !errors.Is(err, driver.ErrHeld) {
		b.Release(call, r.Hold)
	}
}

// goesOn waits until locks are taken again, through every backend.
func goesOn(t *testing.T, what string, all ...*busy) {
	t.Helper()
	start := time.Now()
	for _, u := range all {
		from := u.pairs.Load()
		for u.pairs.Load() < from+5 {
			if time.Since(start) > usable {
				t.Fatalf("%s: no lock could be taken for %v", what, usable)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Logf("%s: usable after %v", what, time.Since(start).Round(time.Millisecond))
}

// hears checks that a waiter is woken by a release, without a poll.
func hears(t *testing.T, b *Backend, name string) {
	t.Helper()
	deadline := time.Now().Add(usable)
	r := request(name, driver.Exclusive)
	for {
		ctx, cancel := timeout(t, 2*time.Second)
		_, err := b.Acquire(ctx, r)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("acquire: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := timeout(t, usable)
	defer cancel()
	var w driver.Watch
	var err error
	for w.Ready == nil {
		if w, err = b.Watch(ctx, request(name, driver.Exclusive)); err != nil && ctx.Err() != nil {
			t.Fatalf("watch: %v", err)
		}
	}
	defer w.Close()
	release(t, b, r)
	signalled(t, w)
}

// A slot that moves, with a lock that is held, one that is waited for, and others that
// are taken all the while.
func TestClusterSlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
			tag := "{" + driver.NewOwner() + "}"
			held := request(tag+"held", driver.Exclusive)
			acquire(t, b, held)
			watch := armWatch(t, b, request(held.Name, driver.Exclusive))
			defer watch.Close()
			u := keepBusy(t, b, tag+"busy")
			goesOn(t, "before", u)

			masters, from := g.Masters(), g.NodeOf(tag)
			to := masters[0]
			if to == from {
				to = masters[1]
			}
			move := g.StartMove(g.Slot(tag), to)
			move.Keys(held.Name)
			// The lock's only key is at the new place already: it is asked for there.
			for _, err := range b.Renew(t.Context(), []driver.Hold{held.Hold}) {
				if err != nil {
					t.Errorf("renew while the slot moves: %v", err)
				}
			}
			move.Finish()
			goesOn(t, "moved", u)
			signalled(t, watch) // messages may have been missed
			release(t, b, held)
			signalled(t, watch)
			hears(t, b, tag+"heard")
		})
	}
}

func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	g := testserver.RedisCluster(t, testserver.RedisOptions{})
	const name = "{failing}"
	var all []*busy
	var backends []*Backend
	for _, w := range clusterWays {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		backends = append(backends, b)
		all = append(all, keepBusy(t, b, name+w.name))
	}
	goesOn(t, "before", all...)
	for _, peaceful := range []bool{true, false} {
		if old := g.NodeOf(name); peaceful {
			g.Failover(old)
		} else {
			old.Kill()
			g.AwaitFailover(old)
		}
		goesOn(t, fmt.Sprintf("peaceful: %v", peaceful), all...)
		for i, b := range backends {
			hears(t, b, name+clusterWays[i].name+"heard")
		}
	}
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	var all []*busy
	var backends []*Backend
	for _, w := range sentinelWays {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		backends = append(backends, b)
		all = append(all, keepBusy(t, b, w.name))
	}
	goesOn(t, "before", all...)
	old := g.Master()
	old.Kill()
	g.AwaitFailover(old)
	goesOn(t, "killed", all...)
	for i, b := range backends {
		hears(t, b, sentinelWays[i].name+"heard")
	}
}
