package etcd

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// What is wrong with etcd's own locks, reproduced with them, and not so with distlock in
// the same place.

// A session of concurrency's is one participant, however many mutexes are made of it: its
// goroutines are in the section together, and nobody says so.
func TestManyOnOneSession(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		session := newSession(t, d.client(t))
		if most := peers.Crowd(t, session, newName()); most < 2 {
			t.Errorf("concurrency.Mutex: at most %d inside at once: has it been mended?", most)
		} else {
			t.Logf("concurrency.Mutex: %d inside at once", most)
		}
		us := d.distlock(t, nil)
		for kind, s := range map[string]peers.Side{"distlock": us, "distlock without hand-off": us.With(distlock.WithHandoff(0, 0))} {
			if most := peers.Crowd(t, s, newName()); most != 1 {
				t.Errorf("%s: %d inside at once", kind, most)
			}
		}
	})
}

// A TryLock of concurrency's writes a key and removes it again, which others take for a
// holder: while many try, nobody gets a lock that is free.
func TestTryUnderRace(t *testing.T) {
	const rounds, racers = 50, 32
	eachRelease(t, func(t *testing.T, d *deployment) {
		c := d.client(t)
		var them, us []peers.Tryer
		for range racers {
			them = append(them, newSession(t, c))
			us = append(us, shared(t, c))
		}
		count := func(all []peers.Tryer) (won [3]int) {
			for range rounds {
				won[min(race(t, all), 2)]++
			}
			return won
		}
		if won := count(them); won[0] < rounds/10 || won[2] > 0 {
			t.Errorf("concurrency.Mutex: rounds with no, one, more winners: %d: has it been mended?", won)
		} else {
			t.Logf("concurrency.Mutex: rounds with no, one, more winners: %d", won)
		}
		if won := count(us); won[1] != rounds {
			t.Errorf("distlock: rounds with no, one, more winners: %d", won)
		}
	})
}

// race lets all try until they have begun so many tries since the first of them has given
// the lock back, and returns how many got it.
func race(t *testing.T, all []peers.Tryer) (winners int) {
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

// A waiter of concurrency's whose lease is gone is out of the line, and waits on all the
// same, to be told in the end. One of distlock's stands in line again.
func TestWaiterLosesItsLease(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, name, holder := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, holder, name)
		w := peers.StartWaiter(t, newMutex(t, d), name)
		revokeLease(t, c, inLine(t, c, name, 2)[1])
		inLine(t, c, name, 1)
		time.Sleep(time.Second)
		select {
		case g := <-w.Got:
			t.Errorf("concurrency.Mutex: the waiter was told at once (%v): has it been mended?", g.Err)
		default:
			peers.Give(t, h)
			if g := <-w.Got; !errors.Is(g.Err, concurrency.ErrSessionExpired) {
				t.Errorf("concurrency.Mutex: the waiter was told %v", g.Err)
			}
		}

		h = peers.Take(t, holder, name)
		w = peers.StartWaiter(t, d.distlock(t, nil), name)
		before := inLine(t, c, name, 2)[1]
		revokeLease(t, c, before)
		peers.Eventually(t, "distlock's waiter does not stand in line again", func() bool {
			now := line(t, c, name)
			return len(now) == 2 && now[1] != before
		})
		w.Waits(t)
		peers.Give(t, h)
		g := w.Granted(t)
		if keys := line(t, c, name); len(keys) != 1 {
			t.Errorf("distlock's waiter has the lock by %q", keys)
		}
		peers.Give(t, g)
	})
}

// revokeLease ends the lease that a key is attached to.
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

// Whoever locks "a" by etcd's own ways waits for the holders of "a/b" too: their keys
// begin alike. distlock tells them apart, and excludes the peers all the same.
func TestNamesInNames(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, us, them, outer := d.client(t), d.distlock(t, nil), newMutex(t, d), newName()
		for kind, holder := range map[string]peers.Side{"distlock": us, "concurrency.Mutex": newMutex(t, d)} {
			inner := peers.Take(t, holder, outer+"/b")
			h := peers.Take(t, us, outer)
			w := peers.StartWaiter(t, them, outer)
			inLine(t, c, outer, 3)
			peers.Give(t, h)
			time.Sleep(settled)
			select {
			case <-w.Got:
				t.Errorf("concurrency.Mutex does not wait for a %s with a longer name: has it been mended?", kind)
			default:
			}
			if h, err := us.Try(t.Context(), outer); h != nil || err != nil {
				t.Errorf("distlock passes a waiter: %v, %v", h, err)
			}
			peers.Give(t, inner)
			peers.Give(t, w.Granted(t))
		}
	})
}
