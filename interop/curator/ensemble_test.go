package curator

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

// In an ensemble the two sides may be with servers that lag behind each other.
func TestLongEnsemble(t *testing.T) {
	d := &deployment{testserver.SharedZooKeeperCluster(t).Addrs()}
	t.Run("turns", func(t *testing.T) {
		turnsAlone(t, d, mutex, 2, 40, editions...)
		turnsAlone(t, d, multi, 1, 20, editions...)
		turnsShared(t, d, 25)
		turnsCounted(t, d, 20)
	})
	t.Run("wake-ups", func(t *testing.T) {
		each(t, func(t *testing.T, e *edition) { wakeUps(t, d, e, mutex, 20) })
	})
	t.Run("java dies", func(t *testing.T) { javaDies(t, d, current) })
	t.Run("go dies", func(t *testing.T) { goDies(t, d, current) })
}

// The death of the leader ends no session. Holders keep their locks, and waiters are woken by the
// release.
func TestLongLeaderDies(t *testing.T) {
	g := testserver.ZooKeeperCluster(t, testserver.ZooKeeperOptions{})
	d := &deployment{g.Addrs()}
	s := newFixture(t, d, current, mutex)
	t.Cleanup(func() {
		current.jvms.Disconnect(t, func(key string) bool { return strings.HasPrefix(key, d.hosts()) })
	})
	other := fixtureOf(t, d, current, mutex, s.name+"-other")
	s.on(s.th, "lock").Wait(t)
	ours := interop.Wait(t, s.lock)
	s.awaitNodes(t, 2)
	h := interop.Take(t, other.lock)
	javas := other.on(other.other, "lock")
	other.other.Parks(t)
	old := g.Leader()
	old.Kill()
	g.AwaitLeader(old)
	interop.IsHeld(t, s.lock)
	interop.IsHeld(t, other.lock)
	s.on(s.th, "unlock").Wait(t)
	interop.Give(t, ours.Granted(t))
	interop.Give(t, h)
	javas.Wait(t)
	other.on(other.other, "unlock").Wait(t)
}
