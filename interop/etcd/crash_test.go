package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/interop"
	"github.com/distlock/distlock/interop/peers"
)

const (
	// crashTTL is the TTL of locks whose holder crashes.
	crashTTL = 4 * time.Second
	// grace is the time that a busy machine may add. A server looks for ended leases twice a second, and revokes a
	// limited number at a time. All other leases live longer.
	grace = 20 * time.Second
)

// crashingPeers acquire a lock, and return a function that crashes its holder.
var crashingPeers = map[string]func(t *testing.T, d *deployment, name string) (die func()){
	"concurrency.Mutex":              crashingMutex,
	"v3lock":                         crashingV3lock,
	"etcdctl":                        crashingEtcdctl(false),
	"etcdctl of the current release": crashingEtcdctl(true),
}

// crashingMutex closes its connection, and revokes nothing.
func crashingMutex(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	s := must.Get(concurrency.NewSession(c, concurrency.WithTTL(int(crashTTL.Seconds()))))(t)
	peers.Take(t, mutexSide{s}, name)
	return func() { c.Close() }
}

func crashingV3lock(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	peers.Take(t, leaseV3lock(t, c, crashTTL), name)
	return func() { c.Close() }
}

func crashingEtcdctl(current bool) func(t *testing.T, d *deployment, name string) func() {
	return func(t *testing.T, d *deployment, name string) func() {
		h := &etcdctlHeld{}
		s := newEtcdctl(current)(t, d).(etcdctlSide)
		must.Get(h.start(s, "--ttl", fmt.Sprint(crashTTL.Seconds()), prefix+name))(t)
		return func() { h.cmd.Process.Kill() }
	}
}

func TestPeerDies(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		for kind, mortal := range crashingPeers {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				c, name := d.client(t), newName()
				die := mortal(t, d, name)
				w := peers.StartWaiter(t, d.distlock(t, nil), name)
				awaitKeys(t, c, name, 2)
				before := createRevision(t, c, lockKeys(t, c, name)[0])
				if g := awaitFreed(t, c, name, w, die); g.Fence() <= before {
					t.Errorf("fence %d came after revision %d", g.Fence(), before)
				}
			})
		}
	})
}

func TestDistlockDies(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peerKind) {
		name := newName()
		child := interop.StartChild(t, d.url(), "holds", name)
		w := peers.StartWaiter(t, p.open(t, d), name)
		c := d.client(t)
		awaitKeys(t, c, name, 2)
		awaitFreed(t, c, name, w, func() { child.Process.Kill() })
	})
}

// awaitFreed crashes a holder, and expects that the waiter gets the lock when the holder's lease ends.
func awaitFreed(t *testing.T, c *clientv3.Client, name string, w peers.Waiter, die func()) peers.Grant {
	t.Helper()
	asked := time.Now()
	left := leaseLeft(t, c, lockKeys(t, c, name)[0])
	w.Waits(t)
	die()
	died := time.Now()
	g := w.Granted(t)
	took := g.At.Sub(died).Round(time.Millisecond)
	t.Logf("the lock was free %v after its holder had died", took)
	if g.At.Sub(asked) < left || took > crashTTL+grace {
		t.Errorf("want between %v and %v", left, crashTTL+grace)
	}
	peers.Give(t, g)
	return g
}

// leaseLeft returns the least time that the lease of a key lives, unless it is revoked.
func leaseLeft(t *testing.T, c *clientv3.Client, key string) time.Duration {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease))
	if err != nil || left.TTL < 1 {
		t.Fatalf("%s: %d s left, %v", key, left.TTL, err)
	}
	return time.Duration(left.TTL) * time.Second
}

// createRevision returns the revision at which a key was created.
func createRevision(t *testing.T, c *clientv3.Client, key string) uint64 {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	return uint64(r.Kvs[0].CreateRevision)
}

// hold holds a lock, in a process that is killed.
func hold(url, _, name string) error {
	ctx := context.Background()
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: crashTTL})
	if err != nil {
		return err
	}
	_, err = c.Mutex(name).Lock(ctx)
	return err
}

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
			expect.Equal(t, peers.Crowd(t, s, newName()), 1, kind, "inside at once")
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
		if won := count(them); won[0] == 0 || won[2] > 0 {
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
	must.Get(c.Revoke(t.Context(), clientv3.LeaseID(r.Kvs[0].Lease)))(t)
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
