package etcd

import (
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/peers"
)

// Two clients of distlock and two of a peer take turns on one lock.
func TestTurns(t *testing.T) {
	eachPeer(t, func(t *testing.T, d *deployment, p peer) {
		turns := 150
		if p.slow {
			turns = 40
		}
		name := newName()
		peers.Turns(t, name, turns, map[string][]peers.Side{
			"distlock": {d.distlock(t, nil), d.distlock(t, nil)}, p.name: {p.open(t, d), p.open(t, d)},
		})
		if left := line(t, d.client(t), name); len(left) != 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// settled is after what time etcd tells of a change at once to somebody who watches in
// a way that it has to catch up with, as the peers do.
const settled = 150 * time.Millisecond

// Whoever waits on one side is woken by a release on the other. What is timed has no other
// tests beside it.
func TestWakeUps(t *testing.T) {
	eachPeerAlone(t, func(t *testing.T, d *deployment, p peer) {
		rounds := 25
		if p.slow {
			rounds = 8
		}
		c, us, them := d.client(t), d.distlock(t, nil), p.open(t, d)
		queued := func(name string) { inLine(t, c, name, 2) }
		peers.WakeUps(t, rounds, us, them, newName, queued)
		peers.WakeUps(t, rounds, them, us, newName, func(name string) {
			queued(name)
			time.Sleep(settled)
		})
	})
}
