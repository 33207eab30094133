package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	// shortLife is the life of locks whose holder will die.
	shortLife = 4 * time.Second
	// grace is what a busy machine may add. A server looks for leases that have ended
	// twice a second, and revokes so many of them at a time. All other leases live longer.
	grace = 20 * time.Second
)

// mortals take a lock by one of etcd's own ways, and die with it when they are told to.
var mortals = map[string]func(t *testing.T, d *deployment, name string) (die func()){
	"concurrency.Mutex":              mortalMutex,
	"v3lock":                         mortalV3lock,
	"etcdctl":                        mortalEtcdctl(false),
	"etcdctl of the current release": mortalEtcdctl(true),
}

// mortalMutex ends with its connection, and revokes nothing.
func mortalMutex(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(shortLife.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	peers.Take(t, mutexSide{s}, name)
	return func() { c.Close() }
}

func mortalV3lock(t *testing.T, d *deployment, name string) func() {
	c := d.client(t)
	peers.Take(t, leaseV3lock(t, c, shortLife), name)
	return func() { c.Close() }
}

func mortalEtcdctl(current bool) func(t *testing.T, d *deployment, name string) func() {
	return func(t *testing.T, d *deployment, name string) func() {
		h := &etcdctlHeld{}
		s := newEtcdctl(current)(t, d).(etcdctlSide)
		if _, err := h.start(s, "--ttl", fmt.Sprint(shortLife.Seconds()), prefix+name); err != nil {
			t.Fatal(err)
		}
		return func() { h.cmd.Process.Kill() }
	}
}

func TestPeerDies(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		for kind, mortal := range mortals {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				c, name := d.client(t), newName()
				die := mortal(t, d, name)
				w := peers.StartWaiter(t, d.distlock(t, nil), name)
				inLine(t, c, name, 2)
				before := created(t, c, line(t, c, name)[0])
				if g := freed(t, c, name, w, die); g.Fence() <= before {
					t.Errorf("fence %d came after revision %d", g.Fence(), before)
				}
			})
		}
	})
}

func TestDistlockDies(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peer) {
		name := newName()
		child := startChild(t, d, name)
		w := peers.StartWaiter(t, p.open(t, d), name)
		c := d.client(t)
		inLine(t, c, name, 2)
		freed(t, c, name, w, func() { child.Process.Kill() })
	})
}

// freed expects that a waiter gets the lock when the lease of its holder, which dies, ends.
func freed(t *testing.T, c *clientv3.Client, name string, w peers.Waiter, die func()) peers.Grant {
	t.Helper()
	asked := time.Now()
	left := leaseLeft(t, c, line(t, c, name)[0])
	w.Waits(t)
	die()
	died := time.Now()
	g := w.Granted(t)
	took := g.At.Sub(died).Round(time.Millisecond)
	t.Logf("the lock was free %v after its holder had died", took)
	if g.At.Sub(asked) < left || took > shortLife+grace {
		t.Errorf("want between %v and %v", left, shortLife+grace)
	}
	peers.Give(t, g)
	return g
}

// leaseLeft returns how long the lease of a key lives at least, unless it is revoked.
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

// created is the revision that a key was created at.
func created(t *testing.T, c *clientv3.Client, key string) uint64 {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) == 0 {
		t.Fatalf("%s: %v", key, err)
	}
	return uint64(r.Kvs[0].CreateRevision)
}
