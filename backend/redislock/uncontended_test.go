package redislock

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// split returns a backend that is warm, and whose attempts are interrupted by between, behind the SET: the server may run other clients'
// commands there.
func split(t *testing.T, srv *testserver.RedisServer, between func()) (*Backend, *relay) {
	t.Helper()
	b, relay := openRelayed(t, srv.Addr(), Options{})
	relay.before(func(command []string) {
		if command[0] == "XADD" {
			between()
		}
	})
	warm(t, b, driver.Exclusive) // by a script
	return b, relay
}

// A lock that is released by force and taken by another, before the attempt's fence is drawn, is the other's: the attempt is
// refused, and no fence above the other's is given out for the name.
func TestForcedUnlockWithinAnAttempt(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c, rival := raw(t, srv.Addr()), openOwn(t, srv.Addr(), Options{})
	warm(t, rival, driver.Exclusive)
	for _, mode := range aloneModes {
		r := request("", mode)
		other := request(r.Name, mode)
		b, _ := split(t, srv, func() {
			must.OK(t, c.Del(t.Context(), r.Name).Err())
			acquire(t, rival, other)
		})
		refused(t, b, r, driver.ErrHeld)
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: release of what it does not hold: %v", mode, err)
		}
		release(t, rival, other)
	}
}

// An attempt that does not look at its value behind the fence would be granted a lock that is another's, with a greater fence.
func TestForcedUnlockNeedsALookBehindTheFence(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c, rival := raw(t, srv.Addr()), openOwn(t, srv.Addr(), Options{})
	warm(t, rival, driver.Exclusive)
	r := request("", driver.Exclusive)
	var last driver.Grant
	b, relay := split(t, srv, nil)
	note := ""
	relay.handle(func(command []string, send func(...string) redisconn.Answer) redisconn.Answer {
		if command[0] == "XADD" {
			must.OK(t, c.Del(t.Context(), r.Name).Err())
			last = acquire(t, rival, request(r.Name, driver.Exclusive))
		}
		a := send(command...)
		switch command[0] {
		case "SET":
			note = command[2]
		case "GET":
			a.Reply = note
		}
		return a
	})
	if g := acquire(t, b, r); g.Fence <= last.Fence {
		t.Errorf("fence %d, and the holder has %d: the test shows nothing", g.Fence, last.Fence)
	}
}

// A lock that ends by its TTL before the fence is drawn is taken anew, under a fence that was drawn while it was held.
func TestLockEndsWithinAnAttempt(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	b, _ := split(t, srv, func() { must.OK(t, c.Del(t.Context(), r.Name).Err()) })
	acquire(t, b, r)
	release(t, b, r)
}

// A lock that was freed without the queue, by an administrator's DEL, belongs to the first in the queue: an attempt that takes it by plain
// commands gives it back, and the first is notified.
func TestFreeLockBeforeAQueue(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c, holder, b := raw(t, srv.Addr()), openOwn(t, srv.Addr(), Options{}), openOwn(t, srv.Addr(), Options{})
	longTurns(t, holder)
	longTurns(t, b)
	warm(t, b, driver.Exclusive)
	for _, mode := range aloneModes {
		r := request("", mode)
		acquire(t, holder, r)
		first := enqueued(t, holder, r.Name)
		w := armWatch(t, holder, first)
		must.OK(t, c.Del(t.Context(), r.Name).Err())

		late := request(r.Name, mode)
		late.Queue = true
		refused(t, b, late, driver.ErrHeld)
		signalled(t, w)
		w.Close()
		acquire(t, holder, first)
		refused(t, b, late, driver.ErrHeld)
		release(t, holder, first)
		acquire(t, b, late)
		release(t, b, late)
	}
}

// A queued waiter's attempts go by the script for as long as its place lasts: it must not take its own lock before itself.
func TestContendedNamesAreRemembered(t *testing.T) {
	srv := testserver.Redis(t)
	b := openOwn(t, srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	next := enqueued(t, b, r.Name)
	release(t, b, r)
	usage(t, srv)
	acquire(t, b, next)
	if sent, _ := usage(t, srv); sent["evalsha"] != 1 {
		t.Errorf("the turn takes %v, want one script", sent)
	}
	release(t, b, next)
	other := request("", driver.Exclusive)
	acquire(t, b, other)
	if sent, _ := usage(t, srv); sent["evalsha"] != 1 { // the release before
		t.Errorf("another name takes %v, want no script", sent)
	}
	release(t, b, other)
}

// fallingFences takes a lock again and again, while the counter is lost behind each grant, and returns how often a fence was
// not greater than the one before.
func fallingFences(t *testing.T, b *Backend, lose func()) (n int) {
	t.Helper()
	last := uint64(0)
	for range 3000 {
		r := request("lost-counter", driver.Exclusive)
		g := acquire(t, b, r)
		release(t, b, r)
		if g.Fence <= last {
			n++
		}
		last = g.Last()
		if g = acquire(t, b, r); g.Fence <= last {
			n++
		}
		last = g.Last()
		release(t, b, r)
		lose()
	}
	return n
}

// Fences increase though the counter is lost within the millisecond of the last one. A counter that is made without a look at
// the clock's microseconds falls.
func TestFencesOfALostCounter(t *testing.T) {
	srv := testserver.Redis(t)
	c, b := raw(t, srv.Addr()), openOwn(t, srv.Addr(), Options{})
	lose := func() { must.OK(t, c.Del(t.Context(), "distlock:fence").Err()) }
	warm(t, b, driver.Exclusive)
	if n := fallingFences(t, b, lose); n > 0 {
		t.Errorf("%d fences fell", n)
	}
	b.storage.(*uncontended).commands.Creates = true
	// Where commands take longer than a millisecond, that shows less often.
	eventually(t, "a counter that starts with the millisecond falls", func() bool { return fallingFences(t, b, lose) > 0 })
}

// A lock whose fence is refused is given back, and the attempt is spent.
func TestFenceIsRefused(t *testing.T) {
	srv := testserver.Redis(t)
	b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
	warm(t, b, driver.Exclusive)
	admin(t, c, "-xadd")
	r := request("", driver.Exclusive)
	_, err := b.Acquire(t.Context(), r)
	if !errors.Is(err, driver.ErrSpent) || !strings.Contains(err.Error(), "XADD") && !strings.Contains(err.Error(), "xadd") {
		t.Errorf("acquire: %v, want it spent, and the command named", err)
	}
	if n := c.Exists(t.Context(), r.Name).Val(); n != 0 {
		t.Error("the lock was not given back")
	}
	admin(t, c, "+xadd")
	acquire(t, b, request(r.Name, driver.Exclusive))
}

// A replica that lacks the last fences of its master gives greater ones once it is the master: from its clock.
func TestFencesOverAFailoverToALaggingReplica(t *testing.T) {
	master, replica := replicated(t)
	b := openOwn(t, master.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	release(t, b, r)
	awaitReplica(t, master)
	must.OK(t, raw(t, replica.Addr()).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	var last driver.Grant
	for range 50 {
		last = acquire(t, b, r)
		release(t, b, r)
	}
	after := openOwn(t, replica.Addr(), Options{})
	for range 3 { // by a script first
		g := acquire(t, after, r)
		if g.Fence <= last.Last() {
			t.Errorf("fence %d behind %d", g.Fence, last.Last())
		}
		last = g
		release(t, after, r)
	}
}

// Equal ids, of two masters after a split brain, are different fences for different Owners.
func TestFencesOfEqualIDs(t *testing.T) {
	l, seen := layouts.String("", false), map[uint64]int{}
	const owners = 4000
	for range owners {
		g := must.Get(l.Grant(request("", driver.Exclusive), "1795225002047-0"))(t)
		seen[g.Fence]++
	}
	most := 0
	for _, n := range seen {
		most = max(most, n)
	}
	if len(seen) < 400 || most > owners/100 {
		t.Errorf("%d fences, one of them %d times", len(seen), most)
	}
	before := must.Get(l.Grant(driver.Request{Hold: request("", driver.Exclusive).Hold, Fences: 1 << 20}, "1795225002047-0"))(t)
	after := must.Get(l.Grant(request("", driver.Exclusive), "1795225002047-1"))(t)
	if after.Fence <= before.Last() {
		t.Errorf("fence %d behind %d", after.Fence, before.Last())
	}
}

// aloneModes are the modes whose free locks are taken by plain commands.
var aloneModes = []driver.Mode{driver.Exclusive, driver.Write}

// Inspect knows the fence of a lock before its first renewal, and how long it has been held.
func TestInspectBeforeTheFirstRenewal(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, o := range []Options{{}, {Scripts: ScriptsOff}} {
		b := openOwn(t, srv.Addr(), o)
		warm(t, b, driver.Exclusive)
		for _, mode := range aloneModes {
			if b.Caps().Modes.Has(mode) {
				inspectAround(t, b, mode)
			}
		}
	}
}

func inspectAround(t *testing.T, b *Backend, mode driver.Mode) {
	r := request("", mode)
	r.Meta = map[string]string{"-": "-", "pid": "7"} // a note with a minus where none stands for the fence
	g := acquire(t, b, r)
	wants := func(fence uint64) (age time.Duration) {
		t.Helper()
		info := must.Get(b.Inspect(t.Context(), r.Name))(t)
		if len(info.Holders) != 1 || info.Mode != mode {
			t.Fatalf("%v: %+v", mode, info)
		}
		h := info.Holders[0]
		if h.Owner != r.Owner || h.Mode != mode || h.Fence != fence || h.Held < 0 || h.Held > time.Minute || h.Meta["pid"] != "7" || h.Foreign {
			t.Errorf("holder %+v, want fence %d", h, fence)
		}
		return h.Held
	}
	age := wants(g.Fence)
	r.Fence = g.Last()
	for range 2 {
		time.Sleep(20 * time.Millisecond)
		must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		if older := wants(g.Fence); older < age+10*time.Millisecond {
			t.Errorf("%v: %v old, and later %v", mode, age, older)
		} else {
			age = older
		}
	}
	release(t, b, r)
}

// Where the server deletes a key that has a certain value, the release of a lock that was not renewed needs no script. All
// else is released by a script alone, in one round trip: it has its fence. Only a lock whose first waiter came while it was held takes both. A TTL
// of the release that is not the attempt's, as a quorum has it, changes nothing.
func TestReleaseByDelete(t *testing.T) {
	srv := testserver.Valkey(t)
	other := openOwn(t, srv.Addr(), Options{})
	for _, mode := range aloneModes {
		b := openOwn(t, srv.Addr(), Options{}) // which takes no name for one that is waited for
		warm(t, b, driver.Exclusive)
		r := request("", mode)
		sentBy := func(what string, by *Backend, scripts, deletes int) {
			t.Helper()
			usage(t, srv)
			release(t, by, r)
			if sent, inside := usage(t, srv); sent["evalsha"]+sent["eval"] != scripts || inside["delifeq"] != deletes {
				t.Errorf("%v, %s: %v and %v, want %d scripts and %d deletions", mode, what, sent, inside, scripts, deletes)
			}
		}
		acquire(t, b, r)
		sentBy("a free lock", b, 0, 1)
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: a second release: %v", mode, err)
		}
		acquire(t, b, r)
		r.TTL -= 302 * time.Millisecond
		sentBy("a free lock, by another TTL", b, 0, 1)
		acquire(t, b, r)
		sentBy("another client's lock", other, 1, 0)
		acquire(t, b, r)
		r.Fence = 1 << 40
		must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		sentBy("a renewed lock", b, 1, 0)
		acquire(t, b, r)
		next := enqueued(t, b, r.Name)
		w := armWatch(t, b, next)
		sentBy("a lock with a waiter", b, 1, 1)
		signalled(t, w)
		w.Close()
		acquire(t, b, next)
		r = next
		sentBy("a lock that was waited for", b, 1, 0)
	}
}

// A writer that reads now, by a downgrade whose answer may be lost, is released as what it is.
func TestReleaseOfADowngradedWriter(t *testing.T) {
	b := openOwn(t, testserver.Valkey(t).Addr(), Options{})
	warm(t, b, driver.Exclusive)
	for _, released := range []driver.Mode{driver.Read, driver.Write} {
		r, other := request("", driver.Write), request("", driver.Read)
		other.Name = r.Name
		acquire(t, b, r)
		r.Mode = driver.Read
		acquire(t, b, r)
		acquire(t, b, other)
		r.Mode = released
		release(t, b, r)
		refused(t, b, request(r.Name, driver.Write), driver.ErrHeld)
		release(t, b, other)
		acquire(t, b, request(r.Name, driver.Write))
	}
}

// Redis 8.4 has another command than Valkey 9 for that.
func TestReleaseByDelex(t *testing.T) {
	b, relay := openRelayed(t, testserver.Valkey(t).Addr(), Options{})
	var deleted atomic.Int64
	relay.handle(func(command []string, send func(...string) redisconn.Answer) redisconn.Answer {
		switch command[0] {
		case "COMMAND":
			return send(command[0], command[1], command[3], command[2])
		case "DELEX":
			deleted.Add(1)
			return send("DELIFEQ", command[1], command[3])
		}
		return send(command...)
	})
	b.storage = newUncontended(b) // which asks how the server deletes
	warm(t, b, driver.Exclusive)
	before := deleted.Load()
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	release(t, b, r)
	if deleted.Load() != before+1 {
		t.Errorf("%d releases by DELEX, want one", deleted.Load()-before)
	}
	acquire(t, b, request(r.Name, driver.Exclusive))
}

// A lock that was taken without a fence, since the counter is missing, is no refusal if the script that makes the counter is refused:
// the core releases it, as soon as it can.
func TestNoFenceAndNoScript(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	must.Get(srv.Do("ACL", "SETUSER", "some", "on", ">x", "~*", "&*", "+@all"))(t)
	b := openAt(t, "redis://some:x@"+srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	must.Get(srv.Do("FLUSHALL"))(t)
	must.Get(srv.Do("ACL", "SETUSER", "some", "-evalsha", "-eval"))(t)
	r := request("", driver.Exclusive)
	if g, err := b.Acquire(t.Context(), r); err == nil || errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
		t.Fatalf("%+v, %v; want an unknown outcome", g, err)
	}
	must.Get(srv.Do("ACL", "SETUSER", "some", "+@all"))(t)
	release(t, b, r)
	acquire(t, b, request(r.Name, driver.Exclusive))
}
