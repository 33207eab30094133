package zk

import (
	"testing"

	"github.com/distlock/distlock/interop/peers"
)

// Two clients of distlock and two of zk.Lock take turns on one lock.
func TestTurns(t *testing.T) {
	name := newName()
	peers.Turns(t, name, 250, map[string][]peers.Peer{
		"distlock": {newDistlock(t), newDistlock(t)}, "zk.Lock": {newLockSide(t), newLockSide(t)},
	})
	if left := lockNodes(t, connect(t), name); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A waiter on one side is woken by a release on the other.
func TestWakeUps(t *testing.T) {
	c, us, them := connect(t), newDistlock(t), newLockSide(t)
	queued := func(name string) { awaitNodes(t, c, name, 2) }
	peers.WakeUps(t, 60, us, them, newName, queued)
	peers.WakeUps(t, 60, them, us, newName, queued)
}
