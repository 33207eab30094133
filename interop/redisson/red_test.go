package redisson

import (
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

// RedissonRedLock and the backend quorum keep each other out, also while a minority of
// the servers is dead.
func TestLongRedLock(t *testing.T) {
	d, servers := byMajority(t)
	t.Run("turns", func(t *testing.T) { turnsAlone(t, d, red, 2, 40) })
	t.Run("wake-ups", func(t *testing.T) { wakeUps(t, d, red, 20) })
	t.Run("one server less", func(t *testing.T) { oneServerLess(t, d, servers[1]) })
}

func oneServerLess(t *testing.T, d *deployment, dead *testserver.RedisServer) {
	s := newFixture(t, d, red, nil)
	for i := range 2 {
		javaClient(t, jvms.Shared(t, i), d, crowdTTL) // Java connects to all of them or not at all
	}
	dead.Kill()
	h := interop.Take(t, s.lock)
	s.on(s.th, "try", "0", interop.Millis(lease)).Says(t, "false")
	interop.Give(t, h)
	held := s.javaLocks(t, s.th)
	interop.IsHeld(t, s.lock)
	s.javaUnlocks(s.th, held).Wait(t)
	interop.Exclude(t, pairs(t, d), interop.NewName(t), party(red, 2, 20))
}
