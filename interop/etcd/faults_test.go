package etcd

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// Bugs of etcd's own locks, reproduced with them, and absent from distlock in the same place.

// All goroutines that lock through one session of package concurrency hold the lock at once, without an
// error.
func TestManyOnOneSession(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		session := newSession(t, d.client(t))
		if most := peers.Crowd(t, session, newName()); most < 2 {
			t.Errorf("concurrency.Mutex: at most %d inside at once: has it been fixed?", most)
		} else {
			t.Logf("concurrency.Mutex: %d inside at once", most)
		}
		us := d.distlock(t, nil)
		for kind, s := range map[string]peers.Peer{"distlock": us, "distlock without hand-off": us.With(distlock.WithoutHandoff())} {
			if most := peers.Crowd(t, s, newName()); most != 1 {
				t.Errorf("%s: %d inside at once", kind, most)
			}
		}
	})
}

// TryLock of package concurrency writes a key and removes it again. Others take that key for a
// holder: while many try, none gets a free lock.
func TestTryUnderRace(t *testing.T) {
	const rounds, racers = 50, 32
	eachRelease(t, func(t *testing.T, d *deployment) {
		c := d.client(t)
		var them, us []peers.Tryer
		for range racers {
			them = append(them, newSession(t, c))
			us = append(us, distlockOn(t, c))
		}
		count := func(all []peers.Tryer) (won [3]int) {
			for range rounds {
				won[min(countWinners(t, all), 2)]++
			}
			return won
		}
		if won := count(them); won[0] < rounds/10 || won[2] > 0 {
			t.Errorf("concurrency.Mutex: rounds with no, one, more winners: %d: has it been fixed?", won)
		} else {
			t.Logf("concurrency.Mutex: rounds with no, one, more winners: %d", won)
		}
		if won := count(us); won[1] != rounds {
			t.Errorf("distlock: rounds with no, one, more winners: %d", won)
		}
	})
}

// countWinners runs tries from all sides until they have begun 100 since the first side has released the
// lock, and returns how many were granted.
func countWinners(t *testing.T, all []peers.Tryer) (winners int) {
	t.Helper()
	const tries = 100
	var wg sync.WaitGroup
	var released atomic.Bool
	var late atomic.Int64
	holds := make([]peers.Held, len(all))
	name := newName()
	h := peers.Take(t, all[0], name)
	for i, s := range all[1:] {
		wg.Go(func() {
			for late.Load() < tries && holds[i] == nil {
				if released.Load() {
					late.Add(1)
				}
				got, err := s.Try(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				holds[i] = got
			}
		})
	}
	peers.Give(t, h)
	released.Store(true)
	wg.Wait()
	for _, h := range holds {
		if h != nil {
			winners++
			peers.Give(t, h)
		}
	}
	return winners
}

// A waiter of package concurrency whose lease has ended has left the queue. It still waits, and is
// notified in the end. A waiter of distlock queues again.
func TestWaiterLosesItsLease(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, name, holder := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, holder, name)
		w := peers.StartWaiter(t, newMutex(t, d), name)
		revokeLease(t, c, awaitKeys(t, c, name, 2)[1])
		awaitKeys(t, c, name, 1)
		time.Sleep(time.Second)
		select {
		case g := <-w.Got:
			t.Errorf("concurrency.Mutex: the waiter was notified at once (%v): has it been fixed?", g.Err)
		default:
			peers.Give(t, h)
			if g := <-w.Got; !errors.Is(g.Err, concurrency.ErrSessionExpired) {
				t.Errorf("concurrency.Mutex: the waiter got %v", g.Err)
			}
		}

		h = peers.Take(t, holder, name)
		w = peers.StartWaiter(t, d.distlock(t, nil), name)
		before := awaitKeys(t, c, name, 2)[1]
		revokeLease(t, c, before)
		peers.Eventually(t, "distlock's waiter does not queue again", func() bool {
			now := lockKeys(t, c, name)
			return len(now) == 2 && now[1] != before
		})
		w.Waits(t)
		peers.Give(t, h)
		g := w.Granted(t)
		if keys := lockKeys(t, c, name); len(keys) != 1 {
			t.Errorf("distlock's waiter has the lock by %q", keys)
		}
		peers.Give(t, g)
	})
}

// revokeLease revokes the lease of a key.
func revokeLease(t *testing.T, c *clientv3.Client, key string) {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	if _, err := c.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

// Etcd's own waiters for "a" also wait for the holders of "a/b", since their keys have the same prefix.
// distlock distinguishes them, and excludes the peers all the same.
func TestNamesInNames(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, us, them, outer := d.client(t), d.distlock(t, nil), newMutex(t, d), newName()
		for kind, holder := range map[string]peers.Peer{"distlock": us, "concurrency.Mutex": newMutex(t, d)} {
			inner := peers.Take(t, holder, outer+"/b")
			h := peers.Take(t, us, outer)
			w := peers.StartWaiter(t, them, outer)
			awaitKeys(t, c, outer, 3)
			peers.Give(t, h)
			time.Sleep(catchUpDelay)
			select {
			case <-w.Got:
				t.Errorf("concurrency.Mutex does not wait for a %s with a longer name: has it been fixed?", kind)
			default:
			}
			if h, err := us.Try(t.Context(), outer); h != nil || err != nil {
				t.Errorf("distlock overtakes a waiter: %v, %v", h, err)
			}
			peers.Give(t, inner)
			peers.Give(t, w.Granted(t))
		}
	})
}

// The service of an old server grants a lock whose key is gone, to a waiter that has lost its lease
// meanwhile. No other client, and not distlock, honours that lock.
func TestV3lockWithoutItsKey(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, name := d.client(t), newName()
		us := d.distlock(t, nil)
		h := peers.Take(t, us, name)
		w := peers.StartWaiter(t, leaseV3lock(t, c, leaseTTL), name)
		revokeLease(t, c, awaitKeys(t, c, name, 2)[1])
		awaitKeys(t, c, name, 1)
		w.Waits(t)
		peers.Give(t, h)
		g := <-w.Got
		switch {
		case d.current && (g.Err == nil || !strings.Contains(g.Err.Error(), "session is expired")):
			t.Errorf("the service of the current release says %v", g.Err)
		case !d.current && g.Err != nil:
			t.Errorf("the service of the old release says %v: has it been fixed?", g.Err)
		}
		next := peers.Take(t, us, name)
		info, err := us.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != next.Fence() || len(info.Waiters) != 0 {
			t.Errorf("inspect: %+v, %v", info, err)
		}
		if g.Err == nil {
			peers.Give(t, g) // whose key is gone
		}
		if keys := lockKeys(t, c, name); len(keys) != 1 {
			t.Errorf("distlock holds by %q", keys)
		}
		peers.Give(t, next)
	})
}
