package strings

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
)

func take(t *testing.T, s side, name string, ttl time.Duration) held {
	t.Helper()
	h, err := s.try(t.Context(), name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func busy(t *testing.T, who string, s side, name string) {
	t.Helper()
	if _, err := s.try(t.Context(), name, time.Minute); !errors.Is(err, errBusy) {
		t.Errorf("%s takes what somebody else holds: %v", who, err)
	}
}

func is(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// A peer's lock keeps distlock out, which neither breaks nor extends it, and shows it.
func TestPeerHolds(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, name := t.Context(), newRedis(t), newName()
		us := openDistlock(t, prefix)
		theirs := take(t, peer(t), name, time.Hour)
		value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()

		for range 3 {
			busy(t, "distlock", us, name)
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
			t.Errorf("a plain string can't be told from other data, but is listed: %q", n)
		}
		if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
			t.Errorf("their lock was %q until %v, is %q until %v", value, ends, v, e)
		}
		is(t, "their extend", theirs.extend(ctx, time.Hour), nil)
		is(t, "their unlock", theirs.unlock(ctx), nil)
		is(t, "our unlock", take(t, us, name, time.Minute).unlock(ctx), nil)
	})
}

// Whose lock ran out can't touch that of the next, whoever of both it is.
func TestLateOnesTouchNothing(t *testing.T) {
	eachPeer(t, func(t *testing.T, peer func(*testing.T) side) {
		ctx, c, us, them := t.Context(), newRedis(t), openDistlock(t, prefix), peer(t)
		for name, roles := range map[string][2]side{"theirs ran out": {them, us}, "ours ran out": {us, them}} {
			name += newName()
			late := take(t, roles[0], name, time.Minute)
			c.Del(ctx, prefix+name) // its time is up
			next := take(t, roles[1], name, time.Minute)
			value, ends := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val()
			is(t, name+": extend", late.extend(ctx, time.Hour), errNotMine)
			is(t, name+": unlock", late.unlock(ctx), errNotMine)
			busy(t, name, roles[0], name)
			if v, e := c.Get(ctx, prefix+name).Val(), c.PExpireTime(ctx, prefix+name).Val(); v != value || e != ends {
				t.Errorf("%s: the lock was %q until %v, is %q until %v", name, value, ends, v, e)
			}
			is(t, name+": unlock by the next", next.unlock(ctx), nil)
		}
	})
}

// The peers publish nothing: distlock finds out by its poll, long before the lock would have
// ended; and they by theirs.
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

// wakeUp is how long it takes a waiter to get a lock that its holder gives up.
func wakeUp(t *testing.T, waiter, holder side) time.Duration {
	t.Helper()
	name := newName()
	h := take(t, holder, name, time.Hour)
	var at time.Time
	var w sync.WaitGroup
	w.Go(func() {
		l, err := waiter.lock(t.Context(), name, time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		at = time.Now()
		is(t, "unlock", l.unlock(t.Context()), nil)
	})
	time.Sleep(100 * time.Millisecond) // it may as well come later: that is no mistake
	start := time.Now()
	is(t, "unlock", h.unlock(t.Context()), nil)
	w.Wait()
	return at.Sub(start)
}
