package etcd

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/peers"
)

// The service of an old server hands out a lock whose key is gone: who had waited in line
// lost its lease meanwhile. distlock does not believe in such a lock, nor does anybody.
func TestV3lockWithoutItsKey(t *testing.T) {
	eachRelease(t, func(t *testing.T, d *deployment) {
		c, name := d.client(t), newName()
		us := d.distlock(t, nil)
		h := peers.Take(t, us, name)
		w := peers.StartWaiter(t, leaseV3lock(t, c, lease), name)
		revokeLease(t, c, inLine(t, c, name, 2)[1])
		inLine(t, c, name, 1)
		w.Waits(t)
		peers.Give(t, h)
		g := <-w.Got
		switch {
		case d.current && (g.Err == nil || !strings.Contains(g.Err.Error(), "session is expired")):
			t.Errorf("the service of the current release says %v", g.Err)
		case !d.current && g.Err != nil:
			t.Errorf("the service of the old release says %v: has it been mended?", g.Err)
		}
		next := peers.Take(t, us, name)
		info, err := us.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Fence != next.Fence() || len(info.Waiters) != 0 {
			t.Errorf("inspect: %+v, %v", info, err)
		}
		if g.Err == nil {
			peers.Give(t, g) // of a key that is not there: it hurts nobody
		}
		if keys := line(t, c, name); len(keys) != 1 {
			t.Errorf("distlock holds by %q", keys)
		}
		peers.Give(t, next)
	})
}
