package redisson

import (
	"testing"

	"github.com/distlock/distlock/internal/testserver"
)

// RedissonRedLock and the backend quorum keep each other out, also while a minority of
// the servers is dead.
func TestRedLock(t *testing.T) {
	d, servers := byMajority(t)
	t.Run("turns", func(t *testing.T) { turnsAlone(t, d, party{red, 2, 40}) })
	t.Run("wake-ups", func(t *testing.T) { wakeUps(t, d, red, 20) })
	t.Run("one server less", func(t *testing.T) { oneServerLess(t, d, servers[1]) })
}

func oneServerLess(t *testing.T, d *deployment, dead *testserver.RedisServer) {
	s := newSides(t, d, red, nil)
	for i := range 2 {
		sharedJVM(t, i).client(t, d, turnLife) // Java connects to all of them or not at all
	}
	dead.Kill()
	h := take(t, s.lock)
	s.on(s.th, "try", "0", millis(lease)).says(t, "false")
	give(t, h)
	held := s.javaLocks(t, s.th)
	isHeld(t, s.lock)
	s.javaUnlocks(s.th, held).wait(t)
	exclude(t, d, newName(t), party{red, 2, 20})
}
