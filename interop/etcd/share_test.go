package etcd

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
)

// Two clients of distlock and two of a peer take turns on one lock.
func TestTurns(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peerKind) {
		turns := 150
		if p.slow {
			turns = 40
		}
		name := newName()
		peers.Turns(t, name, turns, map[string][]peers.Peer{
			"distlock": {d.distlock(t, nil), d.distlock(t, nil)}, p.name: {p.open(t, d), p.open(t, d)},
		})
		if left := lockKeys(t, d.client(t), name); len(left) != 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// catchUpDelay outlasts the 100 ms in which etcd serves the peers' watches, which begin in the past.
const catchUpDelay = 150 * time.Millisecond

// A waiter on one side is woken by a release on the other. Timed tests run alone.
func TestWakeUps(t *testing.T) {
	eachPeerAlone(t, func(t *testing.T, d *deployment, p peerKind) {
		rounds := 25
		if p.slow {
			rounds = 8
		}
		c, us, them := d.client(t), d.distlock(t, nil), p.open(t, d)
		queued := func(name string) { awaitKeys(t, c, name, 2) }
		peers.WakeUps(t, rounds, us, them, newName, queued)
		peers.WakeUps(t, rounds, them, us, newName, func(name string) {
			queued(name)
			time.Sleep(catchUpDelay)
		})
	})
}

// Inspect shows holders and waiters of both sides.
func TestInspectShowsPeers(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peerKind) {
		c, name, us := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, p.open(t, d), name)
		second := peers.StartWaiter(t, d.distlock(t, nil), name)
		awaitKeys(t, c, name, 2)
		third := peers.StartWaiter(t, p.open(t, d), name)
		keys := awaitKeys(t, c, name, 3)

		info, err := us.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 2 {
			t.Fatalf("inspect: %+v, %v", info, err)
		}
		holder := info.Holders[0]
		if info.Mode != distlock.Exclusive || holder.Mode != distlock.Exclusive || holder.Left <= 0 || holder.Left > leaseTTL || holder.Fence > h.Fence() {
			t.Errorf("inspect shows %+v; the fence is %d, the lease %v", info, h.Fence(), leaseTTL)
		}
		if names := listed(t, us, name); !slices.Equal(names, []string{name}) {
			t.Errorf("listed: %q", names)
		}
		if now := lockKeys(t, c, name); !slices.Equal(now, keys) {
			t.Errorf("Inspect has changed the queue from %q to %q", keys, now)
		}
		peers.Give(t, h)
		peers.Give(t, second.Granted(t))
		peers.Give(t, third.Granted(t))
		if info, err := us.Inspect(t.Context(), name); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("inspect of a free lock: %+v, %v", info, err)
		}
	})
}

func listed(t *testing.T, s peers.Distlock, prefix string) (names []string) {
	t.Helper()
	for name, err := range s.List(t.Context(), prefix) {
		must.OK(t, err)
		names = append(names, name)
	}
	return names
}

// If distlock breaks a peer's lock, the next waiter has it at once. The peer isn't notified, and its unlock
// hurts no other holder.
func TestBreakPeers(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peerKind) {
		c, name, us := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, p.open(t, d), name)
		w := peers.StartWaiter(t, d.distlock(t, nil), name)
		awaitKeys(t, c, name, 2)
		info := must.Get(us.Inspect(t.Context(), name))(t)
		w.Waits(t)
		must.OK(t, us.ForceUnlock(t.Context(), info))
		g := w.Granted(t)
		if g.Fence() <= h.Fence() {
			t.Errorf("fence %d came after %d", g.Fence(), h.Fence())
		}
		expect.Be(t, us.ForceUnlock(t.Context(), info), distlock.ErrLost, "force-unlocked again")
		expect.OK(t, h.Unlock(t.Context()), "the peer's unlock")
		if keys := lockKeys(t, c, name); len(keys) != 1 {
			t.Errorf("distlock holds by %q", keys)
		}
		peers.Give(t, g)
	})
}

// A peer's try doesn't get distlock's lock, and changes nothing.
func TestPeerTries(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		us, them, name := d.distlock(t, nil), newMutex(t, d).(mutexSide), newName()
		for range 20 {
			h := peers.Take(t, us, name)
			if got, err := them.Try(t.Context(), name); got != nil || err != nil {
				t.Fatalf("the peer got what distlock holds: %v, %v", got, err)
			}
			peers.Give(t, h)
			h, err := them.Try(t.Context(), name)
			if h == nil || err != nil {
				t.Fatalf("the peer does not get what is free: %v", err)
			}
			if got, err := us.Try(t.Context(), name); got != nil || err != nil {
				t.Fatalf("distlock got what the peer holds: %v, %v", got, err)
			}
			peers.Give(t, h)
		}
	})
}

// The backend's own package runs these checks on the installed release.
func TestConformanceOnTheCurrentRelease(t *testing.T) {
	url := testserver.SharedCurrentEtcd(t).URL() + "/conformance/"
	drivertest.Run(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, url) },
	})
}
