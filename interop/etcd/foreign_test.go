package etcd

import (
	"errors"
	"slices"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/peers"
)

// distlock shows who holds a lock and who waits for it, on whichever side.
func TestInspectShowsPeers(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peer) {
		c, name, us := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, p.open(t, d), name)
		second := peers.StartWaiter(t, d.distlock(t, nil), name)
		inLine(t, c, name, 2)
		third := peers.StartWaiter(t, p.open(t, d), name)
		keys := inLine(t, c, name, 3)

		info, err := us.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 2 {
			t.Fatalf("inspect: %+v, %v", info, err)
		}
		holder := info.Holders[0]
		if info.Mode != distlock.Exclusive || holder.Mode != distlock.Exclusive || holder.Left <= 0 || holder.Left > lease || holder.Fence > h.Fence() {
			t.Errorf("inspect shows %+v; the fence is %d, the lease %v", info, h.Fence(), lease)
		}
		if names := listed(t, us, name); !slices.Equal(names, []string{name}) {
			t.Errorf("listed: %q", names)
		}
		if now := line(t, c, name); !slices.Equal(now, keys) {
			t.Errorf("looking has changed the line from %q to %q", keys, now)
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
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// A peer's lock that distlock breaks passes at once to who waits. The peer, who is not
// told, can hurt nobody by its unlock.
func TestBreakPeers(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peer) {
		c, name, us := d.client(t), newName(), d.distlock(t, nil)
		h := peers.Take(t, p.open(t, d), name)
		w := peers.StartWaiter(t, d.distlock(t, nil), name)
		inLine(t, c, name, 2)
		info, err := us.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		w.Waits(t)
		if err := us.ForceUnlock(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		g := w.Granted(t)
		if g.Fence() <= h.Fence() {
			t.Errorf("fence %d came after %d", g.Fence(), h.Fence())
		}
		if err := us.ForceUnlock(t.Context(), info); !errors.Is(err, distlock.ErrLost) {
			t.Errorf("broken again: %v", err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Errorf("the peer's unlock: %v", err)
		}
		if keys := line(t, c, name); len(keys) != 1 {
			t.Errorf("distlock holds by %q", keys)
		}
		peers.Give(t, g)
	})
}

// What distlock holds a peer's attempt does not get, and leaves as it is.
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
