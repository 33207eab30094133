package redislock

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// noScripts is a server with two users: the default one may not run scripts, and
// "scripts" may.
func noScripts(t *testing.T) *testserver.RedisServer {
	return testserver.Redis(t, "--aclfile", testserver.File(t, "users.acl", strings.Join([]string{
		"user default on nopass ~* &* +@all -@scripting",
		"user scripts on nopass ~* &* +@all",
		"",
	}, "\n")))
}

// scriptlessOpeners: Open finds out by itself.
var scriptlessOpeners = []opener{
	{"url", openOwn},
	{"go-redis", func(t testing.TB, addr string, o Options) *Backend {
		o.Scripts = ScriptsOff
		return openGoRedis(t, addr, o)
	}},
}

func eachScriptless(t *testing.T, test func(t *testing.T, srv *testserver.RedisServer, b *Backend)) {
	for _, o := range scriptlessOpeners {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			srv := noScripts(t)
			test(t, srv, o.open(t, srv.Addr(), Options{}))
		})
	}
}

func TestScriptlessConformance(t *testing.T) { conformScriptless(t, scriptlessOpeners[:1]) }

func TestLongScriptlessConformance(t *testing.T) { conformScriptless(t, scriptlessOpeners[1:]) }

func conformScriptless(t *testing.T, openers []opener) {
	srv := noScripts(t)
	for _, o := range openers {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			conform(t, srv, o, Options{})
		})
	}
}

func TestScriptlessIsFoundOut(t *testing.T) {
	srv := noScripts(t)
	b := openOwn(t, srv.Addr(), Options{})
	if c := b.Caps(); c.Modes != driver.Modes(driver.Exclusive) || c.Downgrade || c.Queueing != driver.QueueNever {
		t.Errorf("caps %+v", c)
	}
	for _, mode := range []driver.Mode{driver.Write, driver.Read, driver.Counted} {
		if err := refused(t, b, request("", mode), driver.ErrUnsupported); !strings.Contains(err.Error(), "may not run scripts") {
			t.Errorf("%v: %v, want the reason", mode, err)
		}
	}
	if _, err := Open(t.Context(), srv.URL()+"?layout=redisson"); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "scripts") {
		t.Errorf("the layout redisson: %v", err)
	}
	if _, err := Open(t.Context(), srv.URL()+"?replicas=1"); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "scripts") {
		t.Errorf("replicas: %v", err)
	}
	with, err := Open(t.Context(), "redis://scripts:x@"+srv.Addr())
	if with = opened(t, with, err); with.Caps().Modes != driver.AllModes {
		t.Errorf("a user who may: %v", with.Caps().Modes)
	}
	if off := openOwn(t, testserver.SharedRedis(t).Addr(), Options{Scripts: ScriptsOff}); off.Caps().Modes != b.Caps().Modes {
		t.Errorf("told to do without: %v", off.Caps().Modes)
	}
	c := raw(t, srv.Addr())
	for _, o := range []Options{{Scripts: "on"}, {Scripts: ScriptsOff, Layout: Redisson}, {Scripts: ScriptsOff, Replicas: 1}} {
		if b, err := NewGoRedis(c, &o); b != nil || !driver.Final(err) {
			t.Errorf("%+v: %v, %v", o, b, err)
		}
	}
}

// The commands that the package's comment lists are enough.
func TestScriptlessPermissions(t *testing.T) {
	acl := "user default on nopass ~* &* -@all +set +get +pttl +exists +xadd +watch +unwatch +mget +multi +exec +pexpire +del +lindex +publish +subscribe +ping\n"
	srv := testserver.Redis(t, "--aclfile", testserver.File(t, "users.acl", acl))
	b := openOwn(t, srv.Addr(), Options{})
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	acquire(t, b, r)
	w := armWatch(t, b, request(r.Name, driver.Exclusive))
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
		t.Errorf("renew: %v", err)
	}
	release(t, b, r)
	signalled(t, w)
	w.Close()
}

// Clients with and without scripts exclude each other, wake each other, and draw their fences from
// one counter.
func TestScriptlessBesideScripts(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, without *Backend) {
		with, err := Open(t.Context(), "redis://scripts:x@"+srv.Addr())
		with = opened(t, with, err)
		name, last := request("", driver.Exclusive).Name, uint64(0)
		turns := []*Backend{with, without}
		for i := range 40 {
			b, other := turns[i%2], turns[1-i%2]
			r, next := request(name, driver.Exclusive), request(name, driver.Exclusive)
			r.Meta = map[string]string{"turn": fmt.Sprint(i)}
			r.Fences = 5
			for range 1 + i%3 {
				g := acquire(t, b, r)
				if g.Fence <= last || g.Fences != 5 {
					t.Fatalf("fences %d and %d more after %d", g.Fence, g.Fences-1, last)
				}
				last = g.Last()
			}
			refused(t, other, next, driver.ErrHeld)
			info, err := other.Inspect(t.Context(), name)
			if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != r.Owner || info.Holders[0].Meta["turn"] != fmt.Sprint(i) {
				t.Fatalf("seen from the other side: %+v, %v", info, err)
			}
			w := armWatch(t, other, next)
			if i%4 < 2 {
				release(t, b, r)
			} else {
				release(t, other, r) // by force
			}
			signalled(t, w)
			w.Close()
		}
	})
}

// A waiter that was queued by scripts is not passed, and is notified when its turn has come.
func TestScriptlessPassesNoPlace(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, b *Backend) {
		with, err := Open(t.Context(), "redis://scripts:x@"+srv.Addr())
		with = longTurns(t, opened(t, with, err))
		r := request("", driver.Exclusive)
		fair, late := request(r.Name, driver.Exclusive), request(r.Name, driver.Exclusive)
		fair.Queue = true
		c, channel := raw(t, srv.Addr()), layouts.FreeChannel(r.Name)
		m := listen(t, c, channel)
		acquire(t, b, r)
		w := armWatch(t, with, fair)
		refused(t, with, fair, driver.ErrHeld)
		release(t, b, r)
		signalled(t, w)
		refused(t, b, late, driver.ErrHeld)
		signalled(t, w)
		w.Close()
		if n := c.Exists(t.Context(), r.Name).Val(); n != 0 {
			t.Error("the lock was taken in passing and not given back")
		}
		acquire(t, with, fair)
		release(t, with, fair)
		acquire(t, b, late)
		// Two releases were announced to all waiters. The release within an attempt was not: it
		// would wake its own client.
		c.Publish(t.Context(), channel, "end")
		for _, message := range []string{"0", "0", "end"} {
			m.next(channel, message)
		}
	})
}

// Waiters that were queued by scripts, and may hold together, are all notified.
func TestScriptlessNotifiesAllThatMayHold(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, b *Backend) {
		with, err := Open(t.Context(), "redis://scripts:x@"+srv.Addr())
		with = longTurns(t, opened(t, with, err))
		for want, modes := range map[int][]driver.Mode{
			3: {driver.Read, driver.Read, driver.Read, driver.Write, driver.Read}, 2: {driver.Counted, driver.Counted, driver.Counted}, 1: {driver.Write, driver.Read},
		} {
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			line := places(t, with, r.Name, modes...)
			var watches []driver.Watch
			for _, waiter := range line {
				watches = append(watches, armWatch(t, with, waiter))
			}
			release(t, b, r)
			for i, w := range watches[:want] {
				signalled(t, w)
				acquire(t, with, line[i])
			}
			if n := signals(watches[want:]); n > 0 {
				t.Errorf("of %v %d were notified that may not hold", modes, n)
			}
			for _, w := range watches {
				w.Close()
			}
		}
	})
}

func TestScriptlessWrongKeys(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, b *Backend) {
		c, ctx := raw(t, srv.Addr()), t.Context()
		r := request("", driver.Exclusive)
		c.HSet(ctx, r.Name, "a", "b")
		refused(t, b, r, driver.ErrInvalid)
		if err := b.Release(ctx, r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release of a hash: %v", err)
		}
		c.Set(ctx, "distlock:fence", "text", 0)
		r = request("", driver.Exclusive)
		refused(t, b, r, driver.ErrInvalid)
		expect(t, dump(t, c, r))
		for _, value := range []string{"", "theirs", r.Owner + "x", r.Owner[:35]} {
			c.Set(ctx, r.Name, value, time.Minute)
			refused(t, b, r, driver.ErrHeld)
			if errs := b.Renew(ctx, []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
				t.Errorf("renewal of %q: %v", value, errs[0])
			}
		}
	})
}

// A counter ahead of the clock, which stays within its last millisecond, is moved on
// where the thousand numbers of that millisecond are used up.
func TestScriptlessFencesThroughABusyMillisecond(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, b *Backend) {
		ahead := time.Now().Add(time.Hour).UnixMilli()
		raw(t, srv.Addr()).Do(t.Context(), "XADD", "distlock:fence", "MAXLEN", "0", fmt.Sprint(ahead)+"-990", "", "")
		with, err := Open(t.Context(), "redis://scripts:x@"+srv.Addr())
		with = opened(t, with, err)
		r := request("", driver.Exclusive)
		r.Fences = fencesPerGrant
		last := uint64(0)
		for i := range 40 {
			g := acquire(t, []*Backend{b, b, with}[i%3], r)
			if g.Fence <= last {
				t.Fatalf("fence %d after %d", g.Fence, last)
			}
			last = g.Last()
		}
		if want := uint64(ahead+1) * 1000 * fencesPerGrant; last < want || last > want+100*fencesPerGrant {
			t.Errorf("the last fence is %d, want a little more than %d", last, want)
		}
	})
}

func TestScriptlessManyGoroutines(t *testing.T) {
	eachScriptless(t, func(t *testing.T, srv *testserver.RedisServer, b *Backend) {
		var wg sync.WaitGroup
		for range 48 {
			wg.Go(func() {
				for range 20 {
					r := request("", driver.Exclusive)
					if _, err := b.Acquire(t.Context(), r); err != nil {
						t.Error(err)
					}
					if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
						t.Error(err)
					}
					if err := b.Release(t.Context(), r.Hold); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if keys := raw(t, srv.Addr()).Keys(t.Context(), "*").Val(); len(keys) != 1 {
			t.Errorf("keys that stay: %q", keys)
		}
	})
}

// between calls f between the look at a key and the change.
func (r *relay) between(f func()) {
	r.before(func(command []string) {
		if command[0] == "MULTI" {
			f()
		}
	})
}

// A change of a key between the look and the change is noticed. It costs the other holds
// of that batch another look.
func TestScriptlessSeesChanges(t *testing.T) {
	srv := noScripts(t)
	b, relay := openRelayed(t, srv.Addr(), Options{})
	c, ctx := raw(t, srv.Addr()), t.Context()
	mine, stolen := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, b, mine)
	acquire(t, b, stolen)
	between := func() { c.Set(ctx, stolen.Name, "theirs", 0) }
	relay.between(func() { between() })
	errs := b.Renew(ctx, []driver.Hold{mine.Hold, stolen.Hold})
	if errs[0] != nil || !errors.Is(errs[1], driver.ErrLost) {
		t.Errorf("renewals: %v", errs)
	}
	if value := c.Get(ctx, stolen.Name).Val(); value != "theirs" {
		t.Errorf("the other's lock is %q", value)
	}

	// One that never rests is unknown in the end.
	restless := request("", driver.Exclusive)
	acquire(t, b, restless)
	looks := 0
	between = func() { looks++; c.PExpire(ctx, restless.Name, time.Hour) }
	unknown(t, "release", b.Release(ctx, restless.Hold))
	if looks != redisconn.MaxTries {
		t.Errorf("looked at %d times, want %d", looks, redisconn.MaxTries)
	}
	between = func() {}
	release(t, b, restless)
}

// A connection that ends between the look and the change takes its watches with it.
func TestScriptlessConnectionEndsInBetween(t *testing.T) {
	srv := noScripts(t)
	b, relay := openRelayed(t, srv.Addr(), Options{})
	r, c := request("", driver.Exclusive), raw(t, srv.Addr())
	acquire(t, b, r)
	var once sync.Once
	relay.between(func() {
		once.Do(func() { c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") })
	})
	unknown(t, "release", b.Release(t.Context(), r.Hold))
	eventually(t, "the lock is still held", func() bool {
		_, err := b.Acquire(t.Context(), request(r.Name, driver.Exclusive))
		return errors.Is(err, driver.ErrHeld)
	})
	release(t, b, r)
}

// The right to run scripts is withdrawn while locks are held: that is said, and no hold
// is called lost.
func TestScriptsAreForbiddenMeanwhile(t *testing.T) {
	for _, o := range openers {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			srv := testserver.Redis(t)
			b, c := o.open(t, srv.Addr(), Options{}), raw(t, srv.Addr())
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			admin(t, c, "-@scripting")
			if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) || !strings.Contains(err.Error(), "scripts=off") {
				t.Errorf("renew: %v", err)
			}
			if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) || !strings.Contains(err.Error(), "scripts=off") {
				t.Errorf("acquire: %v, want no fact, and to be told of the option", err)
			}
			if err := b.Release(t.Context(), r.Hold); err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
				t.Errorf("release: %v", err)
			}
			// A new client of the caller is told for good. A new one by URL does without scripts, and respects the lock.
			refused(t, openGoRedis(t, srv.Addr(), Options{}), request("", driver.Exclusive), driver.ErrInvalid)
			late := openOwn(t, srv.Addr(), Options{})
			refused(t, late, request(r.Name, driver.Exclusive), driver.ErrHeld)
			admin(t, c, "+@scripting")
			if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err != nil {
				t.Errorf("allowed again: %v", err)
			}
			release(t, b, r)
		})
	}
}

func admin(t *testing.T, c *redis.Client, rule string) {
	t.Helper()
	must.OK(t, c.Do(t.Context(), "ACL", "SETUSER", "default", rule).Err())
}

func TestLongScriptlessClusterConformance(t *testing.T) {
	addrs, opts := testserver.SharedRedisCluster(t).Addrs(), Options{Scripts: ScriptsOff}
	drivertest.Run(t, harness(t, clusterWays[0], addrs, opts, isNoClusterName))
	travels(t, clusterWays, addrs, opts, isNoClusterName)
}

// A slot moves to another server while its lock is held, and back.
func TestScriptlessSlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, w := range clusterWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{Scripts: ScriptsOff}, newNetwork(t))
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			slot := g.Slot(r.Name)
			for _, to := range g.Masters() {
				if to == g.Owner(slot) {
					continue
				}
				g.MoveSlot(slot, to)
				eventually(t, "renewed where the slot is now", func() bool {
					return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] == nil
				})
				refused(t, b, request(r.Name, driver.Exclusive), driver.ErrHeld)
			}
			release(t, b, r)
		})
	}
}

// A failover in peace: the lock is on the new master, and found there.
func TestLongScriptlessFailover(t *testing.T) {
	g := testserver.RedisSentinel(t, testserver.RedisOptions{})
	for _, w := range sentinelWays {
		t.Run(w.name, func(t *testing.T) {
			b := w.open(t, g.Addrs(), Options{Scripts: ScriptsOff}, newNetwork(t))
			r := request("", driver.Exclusive)
			first := acquire(t, b, r)
			now := raw(t, g.Failover().Addr())
			r.TTL *= 2
			eventually(t, "renewed at the new master", func() bool {
				b.Renew(t.Context(), []driver.Hold{r.Hold})
				return now.PTTL(t.Context(), r.Name).Val() > r.TTL/2
			})
			release(t, b, r)
			if next := acquire(t, b, request(r.Name, driver.Exclusive)); next.Fence <= first.Last() {
				t.Errorf("fence %d after %d", next.Fence, first.Last())
			}
		})
	}
}
