package strings

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop/peers"
)

// A peer's lock excludes distlock, which neither breaks nor extends it, and shows it.
func TestPeerHolds(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, name := t.Context(), newRedis(t), newName()
		us := openDistlock(t, prefix)
		theirs := mustTry(t, peer(t), name, time.Hour)
		value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()

		for range 3 {
			expectBusy(t, "distlock", us, name)
		}
		info, err := us.c.Inspect(ctx, name)
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("inspect: %+v, %v", info, err)
		}
		h := info.Holders[0]
		if info.Mode != distlock.Exclusive || h.Owner != value || h.Fence != 0 || h.Left < 50*time.Minute || h.Left > time.Hour {
			t.Errorf("inspect shows %+v, the value is %q", info, value)
		}
		for n := range us.c.List(ctx, name) {
			t.Errorf("a plain string could be any data, but is listed: %q", n)
		}
		if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
			t.Errorf("their lock was %q until %v, is %q until %v", value, ends, v, e)
		}
		expectError(t, "their extend", theirs.extend(ctx, time.Hour), nil)
		expectError(t, "their unlock", theirs.unlock(ctx), nil)
		expectError(t, "our unlock", mustTry(t, us, name, time.Minute).unlock(ctx), nil)
	})
}

// A holder whose lock has expired can't touch the next holder's lock, on either side.
func TestExpiredLocksTouchNothing(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, us, them := t.Context(), newRedis(t), openDistlock(t, prefix), peer(t)
		for name, roles := range map[string][2]side{"theirs ran out": {them, us}, "ours ran out": {us, them}} {
			name += newName()
			late := mustTry(t, roles[0], name, time.Minute)
			c.Del(ctx, prefix+name) // it expires
			next := mustTry(t, roles[1], name, time.Minute)
			value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()
			expectError(t, name+": extend", late.extend(ctx, time.Hour), errNotHeld)
			expectError(t, name+": unlock", late.unlock(ctx), errNotHeld)
			expectBusy(t, name, roles[0], name)
			if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
				t.Errorf("%s: the lock was %q until %v, is %q until %v", name, value, ends, v, e)
			}
			expectError(t, name+": unlock by the next", next.unlock(ctx), nil)
		}
	})
}

// The peers publish nothing: distlock's waiters poll, long before the lock would end, and so do theirs.
func TestWakeUpByPoll(t *testing.T) {
	const rounds = 3
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		us, them := openDistlock(t, prefix), peer(t)
		for waits, roles := range map[string][2]side{"distlock": {us, them}, "peer": {them, us}} {
			var took []time.Duration
			for range rounds {
				took = append(took, wakeUp(t, roles[0], roles[1]))
			}
			slices.Sort(took)
			t.Logf("%s waits: woken after %v (median), %v (longest)", waits, took[rounds/2], took[rounds-1])
			if took[rounds-1] > time.Minute {
				t.Errorf("%s waits: woken after %v", waits, took)
			}
		}
	})
}

// wakeUp returns the time from a release to the waiter's grant.
func wakeUp(t *testing.T, waiter, holder side) time.Duration {
	t.Helper()
	name := newName()
	h := mustTry(t, holder, name, time.Hour)
	var at time.Time
	var w sync.WaitGroup
	w.Go(func() {
		l, err := waiter.lock(t.Context(), name, time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		at = time.Now()
		expectError(t, "unlock", l.unlock(t.Context()), nil)
	})
	time.Sleep(100 * time.Millisecond) // a late waiter does no harm
	start := time.Now()
	expectError(t, "unlock", h.unlock(t.Context()), nil)
	w.Wait()
	return at.Sub(start)
}

// contender is a side that polls quickly, so that the libraries compete for each turn.
type contender struct{ side }

func (c contender) Lock(ctx context.Context, name string) (peers.Held, error) {
	for {
		h, err := c.try(ctx, name, time.Minute)
		if !errors.Is(err, errBusy) {
			return contenderHeld{h}, err
		}
		time.Sleep(rand.N(time.Millisecond))
	}
}

type contenderHeld struct{ held }

// Unlock leaves the others time for a turn.
func (h contenderHeld) Unlock(ctx context.Context) error {
	defer time.Sleep(rand.N(time.Millisecond))
	return h.unlock(ctx)
}

func (contenderHeld) Fence() uint64 { return 0 }

// Two clients of each library take turns on one lock.
func TestTurns(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		peers.Turns(t, newName(), 300, map[string][]peers.Peer{
			"distlock": {contender{newDistlock(t)}, contender{newDistlock(t)}}, "peer": {contender{peer(t)}, contender{peer(t)}},
		})
	})
}
