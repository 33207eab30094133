package sqltest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// succeeds expects that the next holder has a greater fence, and that the previous holder knew of its
// loss.
func (g grant) succeeds(t *testing.T, fence uint64) {
	t.Helper()
	if g.shown {
		t.Errorf("two clients hold the lock: the previous holder does not know of its loss")
	}
	g.outranks(t, fence)
}

// outranks expects that the next holder has a greater fence.
func (g grant) outranks(t *testing.T, fence uint64) {
	t.Helper()
	if g.lease.Fence() <= fence {
		t.Errorf("fence %d came after %d", g.lease.Fence(), fence)
	}
	unlock(t, g.lease)
}

// endures expects that a hold survives a fault for several renewals, and that the next client gets the
// lock after its release.
func endures(t *testing.T, held *distlock.Lease, next <-chan grant, ttl time.Duration) {
	t.Helper()
	ended := watch(held)
	select {
	case at := <-ended:
		t.Fatalf("the hold was lost at %v: %v", at, held.Err())
	case g := <-next:
		t.Fatalf("another client has the held lock: %v, %v", g.lease, g.err)
	case <-time.After(5 * ttl / 4):
	}
	start := time.Now()
	unlock(t, held)
	g := awaitGrant(t, next)
	g.succeeds(t, held.Fence())
	figure(t, "the hold survived; the next client had the lock %v after Unlock", ms(g.at.Sub(start)))
}

// breaks expects that a fault ends a hold, and that the next client then gets the lock.
func breaks(t *testing.T, held *distlock.Lease, next <-chan grant, fault func()) {
	t.Helper()
	ended := watch(held)
	start := time.Now()
	fault()
	g := awaitGrant(t, next)
	at := lost(t, held, ended)
	g.succeeds(t, held.Fence())
	figure(t, "holder's context ended after %v, the next client had the lock after %v", ms(at.Sub(start)), ms(g.at.Sub(start)))
}

// ousts expects that a hold is lost by a fault that the server notices at once. The holder notices it
// only at its next check. Until then two clients may believe that they hold the lock, and fences tell
// them apart.
func ousts(t *testing.T, held *distlock.Lease, next <-chan grant, fault func()) {
	t.Helper()
	ended := watch(held)
	start := time.Now()
	fault()
	g := awaitGrant(t, next)
	at := lost(t, held, ended)
	figure(t, "holder's context ended after %v, the next client had the lock after %v", ms(at.Sub(start)), ms(g.at.Sub(start)))
	g.outranks(t, held.Fence())
}

// often calls do repeatedly until stop.
func (s *scene) often(pause time.Duration, do func()) (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			do()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// figure logs a number for the documentation of a strategy.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%s: "+format, append([]any{t.Name()}, args...)...)
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }

func TestHoldersConnectionsAreKilled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		c.life = 3 * life
		user := c.user()
		held := c.party(user).take(t)
		next := c.party(c.user()).follow(t, held)
		kill := func() { c.killConnections(user) }
		if !s.leased {
			ousts(t, held, next, kill)
			return
		}
		defer c.often(life/4, kill)()
		endures(t, held, next, c.life)
	})
}

func TestHoldersProcessIsKilled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		started := time.Now()
		cmd, fence := c.child()
		next := c.party(c.user()).follow(t, nil)
		cmd.Process.Kill()
		killed := time.Now()
		g := awaitGrant(t, next)
		g.succeeds(t, fence)
		figure(t, "the next client had the lock after %v", ms(g.at.Sub(killed)))
		if lived := g.at.Sub(started); s.leased && lived < life {
			t.Errorf("a hold of %v ended within %v", life, lived)
		}
	})
}

func TestHolderIsPartitioned(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		net := faultproxy.New(t, c.srv.Addr())
		held := c.party(through(net.Addr(), c.user())).take(t)
		next := c.party(c.user()).follow(t, held)
		breaks(t, held, next, net.Silence)
	})
}

// A waiter whose connections are killed goes on with new ones.
func TestWaitersConnectionsAreKilled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		held := c.party(c.user()).take(t)
		next := c.party(user).follow(t, held)
		if !c.leased {
			c.awaitBlocked(user)
		}
		c.killConnections(user)
		start := time.Now()
		unlock(t, held)
		g := awaitGrant(t, next)
		g.succeeds(t, held.Fence())
		figure(t, "the next client had the lock %v after Unlock", ms(g.at.Sub(start)))
	})
}

// A disconnected waiter may be the first in the server's queue. It must not delay other waiters for
// long when it is granted the lock.
func TestWaiterIsPartitioned(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s strategy) {
		t.Parallel()
		c := newScene(t, s, s.kind.shared(t))
		net := faultproxy.New(t, c.srv.Addr())
		held := c.party(c.user()).take(t)
		cutOff := c.user()
		c.party(through(net.Addr(), cutOff)).follow(t, nil)
		if !c.leased {
			c.awaitBlocked(cutOff)
		}
		next := c.party(c.user()).follow(t, nil)
		net.Silence()
		start := time.Now()
		unlock(t, held)
		g := awaitGrant(t, next)
		g.succeeds(t, held.Fence())
		figure(t, "the next client had the lock %v after Unlock", ms(g.at.Sub(start)))
	})
}

// All strategies of a database go through one restart, with TTLs longer than the restart.
func TestServerIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	for _, k := range []*kind{mariaDB, postgreSQL} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			srv := k.own(t)
			for ttl := 4 * life; !restart(t, k, srv, ttl); ttl *= 3 {
				t.Logf("the machine was too slow for a TTL of %v", ttl)
			}
		})
	}
}

// restart returns false if it took so long that holds with this TTL may have ended.
func restart(t *testing.T, k *kind, srv *server, ttl time.Duration) bool {
	var cases []*restartCase
	for _, s := range strategies {
		if s.kind == k {
			cases = append(cases, newRestartCase(t, s, srv, ttl))
		}
	}
	killed := time.Now()
	srv.Kill()
	srv.Start()
	up := time.Now()
	figure(t, "the server answers again after %v", ms(up.Sub(killed)))
	if up.Sub(killed) > ttl/2 {
		return false
	}
	for _, c := range cases {
		t.Run(c.scene.name, func(t *testing.T) {
			t.Parallel()
			c.resolve(t, killed, up)
		})
	}
	return true
}

// restartCase is a strategy with a holder and a waiter, whose server is restarted.
type restartCase struct {
	scene *scene
	held  *distlock.Lease
	ended <-chan time.Time
	next  <-chan grant
}

func newRestartCase(t *testing.T, s strategy, srv *server, ttl time.Duration) *restartCase {
	t.Helper()
	c := &restartCase{scene: newScene(t, s, srv)}
	c.scene.life = ttl
	c.held = c.scene.party(c.scene.user()).take(t)
	c.ended = watch(c.held)
	c.next = c.scene.party(c.scene.user()).follow(t, c.held)
	return c
}

func (c *restartCase) resolve(t *testing.T, killed, up time.Time) {
	if c.scene.leased {
		endures(t, c.held, c.next, c.scene.life)
		return
	}
	g := awaitGrant(t, c.next)
	at := lost(t, c.held, c.ended)
	g.outranks(t, c.held.Fence()) // a server may be back before the holder checks
	figure(t, "holder's context ended after %v, the next client had the lock %v after the server was back", ms(at.Sub(killed)), ms(g.at.Sub(up)))
}
