package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// signals counts how many of the watches have a signal.
func signals(watches []driver.Watch) (n int) {
	for _, w := range watches {
		n += len(w.Ready)
	}
	return n
}

func armMany(t *testing.T, b *Backend, name string, mode driver.Mode, n int) (watches []driver.Watch, requests []driver.Request) {
	for range n {
		r := request(name, mode)
		watches, requests = append(watches, armWatch(t, b, r)), append(requests, r)
	}
	return watches, requests
}

// entrances are how many of three waiters the end of a hold lets in.
var entrances = []struct {
	holds, waits driver.Mode
	want         int
}{
	{driver.Exclusive, driver.Exclusive, 1},
	{driver.Write, driver.Read, 3},
	{driver.Read, driver.Write, 1},
}

// A message wakes as many waiters as can get the lock.
func TestWatchWakesAsManyAsMayEnter(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		for _, layout := range []Layout{String, Redisson} {
			holder, waiter := o.open(t, srv.Addr(), Options{Layout: layout}), o.open(t, srv.Addr(), Options{Layout: layout})
			for _, c := range entrances {
				r := request("", c.holds)
				acquire(t, holder, r)
				watches, _ := armMany(t, waiter, r.Name, c.waits, 3)
				release(t, holder, r)
				eventually(t, "the signals", func() bool { return signals(watches) >= c.want })
				if n := signals(watches); n != c.want {
					t.Errorf("%s: the end of %v woke %d of %v, want %d", layout, c.holds, n, c.waits, c.want)
				}
				for _, w := range watches {
					w.Close()
				}
			}
		}
	})
}

// Waiters of several kinds share a channel: each kind is woken by its own rule.
func TestWatchesOfSeveralKinds(t *testing.T) {
	b := openOwn(t, testserver.SharedRedis(t).Addr(), Options{})
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	first := armWatch(t, b, request(r.Name, driver.Exclusive))
	readers, _ := armMany(t, b, r.Name, driver.Read, 3)
	last := armWatch(t, b, request(r.Name, driver.Exclusive))
	release(t, b, r)
	signalled(t, first)
	eventually(t, "the readers are woken", func() bool { return signals(readers) == len(readers) })
	if len(last.Ready) > 0 {
		t.Error("two that hold alone were woken")
	}
	for _, w := range append(readers, first, last) {
		w.Close()
	}
}

// A waiter that was woken and leaves without a retry passes the message on.
func TestWatchHandsOnWhatItDoesNotUse(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{})
	holder := request("", driver.Exclusive)
	acquire(t, b, holder)
	watches, requests := armMany(t, b, holder.Name, driver.Exclusive, 3)
	release(t, b, holder)
	signalled(t, watches[0])
	watches[0].Close()
	signalled(t, watches[1])
	// A waiter that retried has used the message.
	acquire(t, b, requests[1])
	watches[1].Close()
	if signals(watches[2:]) != 0 {
		t.Error("the third was woken for a lock that the second holds")
	}
	release(t, b, requests[1])
	signalled(t, watches[2])
	watches[2].Close()
}

func TestWatchOfASemaphoreWakesOnePerPermit(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{})
	one, two := request("", driver.Counted), request("", driver.Counted)
	two.Name = one.Name
	acquire(t, b, one)
	acquire(t, b, two)
	watches, _ := armMany(t, b, one.Name, driver.Counted, 4)
	release(t, b, one)
	eventually(t, "one signal", func() bool { return signals(watches) == 1 })
	for _, w := range watches {
		w.Close()
	}
}

// Nothing stays at the server when the last watch has left, and nothing here when the
// backend is closed.
func TestWatchLeavesNothing(t *testing.T) {
	srv := testserver.Redis(t)
	c := raw(t, srv.Addr())
	eachOpener(t, func(t *testing.T, o opener) {
		b := o.open(t, srv.Addr(), Options{Prefix: o.name})
		r := request("", driver.Exclusive)
		channel := layouts.FreeChannel(o.name + r.Name)
		w1, w2 := armWatch(t, b, r), armWatch(t, b, request(r.Name, driver.Exclusive))
		subscribers := func() int64 { return c.PubSubNumSub(context.Background(), channel).Val()[channel] }
		if n := subscribers(); n != 1 {
			t.Errorf("two watches have %d subscriptions, want one", n)
		}
		w1.Close()
		w2.Close()
		eventually(t, "there are no subscribers", func() bool { return subscribers() == 0 })
		// Again, while the connection is still open.
		w := armWatch(t, b, r)
		acquire(t, b, r)
		release(t, b, r)
		signalled(t, w)
		w.Close()
		b.Close()
		eventually(t, "there are no subscribers after Close", func() bool { return subscribers() == 0 })
		if _, err := b.Watch(t.Context(), r); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("watch after Close: %v", err)
		}
	})
}

// The server dies and comes back: watches are armed again, and signalled, since they
// may have missed something.
func TestWatchSurvivesTheServer(t *testing.T) {
	srv := testserver.Redis(t)
	var backends []*Backend
	var watches []driver.Watch
	r := request("", driver.Exclusive)
	for _, o := range openers {
		b := o.open(t, srv.Addr(), Options{})
		backends, watches = append(backends, b), append(watches, armWatch(t, b, r))
	}
	srv.Kill()
	srv.Start()
	for i, w := range watches {
		signalled(t, w)
		h := request(r.Name, driver.Exclusive)
		eventually(t, "the lock can be taken again", func() bool {
			_, err := backends[i].Acquire(t.Context(), h)
			return err == nil
		})
		for len(w.Ready) > 0 {
			<-w.Ready
		}
		release(t, backends[i], h)
		signalled(t, w)
		w.Close()
	}
}

// Without a server Watch returns an error rather than wait.
func TestWatchOfADeadServer(t *testing.T) {
	srv := testserver.Redis(t)
	var backends []*Backend
	for _, o := range openers {
		backends = append(backends, o.open(t, srv.Addr(), Options{}))
	}
	srv.Kill()
	ctx, cancel := timeout(t, tooLong)
	defer cancel()
	for i, b := range backends {
		_, err := b.Watch(ctx, request("", driver.Exclusive))
		if err == nil || ctx.Err() != nil || driver.Final(err) {
			t.Errorf("%s: watch: %v, context: %v", openers[i].name, err, ctx.Err())
		}
	}
}

// The locks a and {a} share a channel. The end of one wakes its waiter, also beside waiters for the other.
func TestWaitersOfNamesInBraces(t *testing.T) {
	b := openOwn(t, testserver.SharedRedis(t).Addr(), Options{})
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
		plain := request("", mode)
		braces := request("{"+plain.Name+"}", mode)
		plain.Limit, braces.Limit = 1, 1
		acquire(t, b, plain)
		acquire(t, b, braces)
		armWatch(t, b, request(braces.Name, mode))
		w := armWatch(t, b, request(plain.Name, mode))
		release(t, b, plain)
		signalled(t, w)
	}
}

// eachWay runs a test for each way to a deployment, side by side.
func eachWay(t *testing.T, ways []way, test func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// A release in a cluster wakes waiters with every kind of message and every client on either side.
// Nothing polls here.
func TestClusterWakes(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, p := range []PubSub{PubSubAuto, PubSubOn, PubSubOff} {
		t.Run(string(p), func(t *testing.T) {
			eachWay(t, clusterWays, func(t *testing.T, w way) {
				for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
					b := w.open(t, g.Addrs(), Options{PubSub: p}, newNetwork(t))
					other := openThrough(t, clusterURL(g), Options{PubSub: p}, newNetwork(t))
					for range 5 { // in as many slots
						r := request("", mode)
						r.Limit = 1
						acquire(t, other, r)
						watch := armWatch(t, b, request(r.Name, mode))
						release(t, other, r)
						signalled(t, watch)
						watch.Close()
					}
				}
			})
		})
	}
}

// Auto is sharded where the servers know it, so that it agrees with Redisson's.
func TestClusterAutoIsSharded(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	eachWay(t, clusterWays, func(t *testing.T, w way) {
		b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
		r := request("", driver.Exclusive)
		watch := armWatch(t, b, r)
		defer watch.Close()
		if got := b.pubsub.Mode(); got != redisconn.PubSubSharded {
			t.Errorf("messages travel as %d", got)
		}
		c := raw(t, g.NodeOf(r.Name).Addr())
		if n := c.PubSubShardNumSub(t.Context(), layouts.FreeChannel(r.Name)).Val()[layouts.FreeChannel(r.Name)]; n != 1 {
			t.Errorf("%d subscriptions on the server that has the slot", n)
		}
	})
}

func TestPubSubOutsideCluster(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, p := range []PubSub{PubSubOn, "both", "loud"} {
		if _, err := Open(t.Context(), srv.URL()+"?pubsub="+string(p)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", p, err)
		}
	}
	b, err := Open(t.Context(), srv.URL()+"?pubsub=off")
	opened(t, b, err)
}

func clusterURL(g *testserver.RedisClusterGroup) string {
	return "redis+cluster://" + strings.Join(g.Addrs(), ",")
}

func sentinelURL(g *testserver.RedisSentinelGroup) string {
	return "redis+sentinel://" + strings.Join(g.Addrs(), ",") + "/" + testserver.SentinelName
}

// Leases in many slots are renewed together, and a server that does not answer does not delay the
// others.
func TestClusterRenewsWhatItCan(t *testing.T) {
	t.Parallel()
	g := testserver.RedisCluster(t, testserver.RedisOptions{Args: []string{"--cluster-node-timeout", "60000"}})
	b, err := Open(t.Context(), clusterURL(g))
	b = opened(t, b, err)
	frozen := g.Masters()[0]
	var holds []driver.Hold
	dead := map[string]bool{}
	for i := range 300 {
		r := request(fmt.Sprintf("many:%d:%s", i, driver.NewOwner()), driver.Exclusive)
		r.TTL = time.Hour
		acquire(t, b, r)
		holds = append(holds, r.Hold)
		dead[r.Name] = g.NodeOf(r.Name) == frozen
	}
	frozen.Pause()
	defer frozen.Resume()
	renewed, unclear := 0, 0
	for patience := 500 * time.Millisecond; renewed+unclear < len(holds) && patience < tooLong; patience *= 2 { // again if the machine was slow
		ctx, cancel := timeout(t, patience)
		renewed, unclear = 0, 0
		for i, err := range b.Renew(ctx, holds) {
			dead := dead[holds[i].Name]
			switch {
			case errors.Is(err, driver.ErrLost), err == nil && dead:
				t.Errorf("%s, its server frozen: %v: %v", holds[i].Name, dead, err)
			case err == nil:
				renewed++
			case dead:
				unclear++
			}
		}
		cancel()
	}
	if unclear == 0 || renewed+unclear < len(holds) {
		t.Errorf("of %d leases %d were renewed, and %d are on the frozen server", len(holds), renewed, unclear)
	}
}

// The first in the queue of a lock of ours is told of all that lets it in. Others are not: the one before them may be dead, and other programs
// publish nothing. RSpinLock writes a hash as RLock does.
func TestWhoIsSignaled(t *testing.T) {
	for name, b := range foreignRigs(t) {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
			if b.caps.QueueingOf(driver.Exclusive) == driver.QueueNever || !b.caps.Modes.Has(mode) {
				continue
			}
			held := request("", mode)
			held.Limit = 1
			if b.layout.Redisson && mode != driver.Exclusive {
				continue // without a queue
			}
			must.Get(b.Acquire(t.Context(), held))(t)
			for place, want := range []bool{true, false} {
				r := held
				r.Owner, r.Queue = driver.NewOwner(), true
				for range 2 {
					if got := locktest.Held(t, b, r); got.Signaled != want {
						t.Errorf("%s, %v, place %d: signalled: %v", name, mode, place, got.Signaled)
					}
				}
				r.Owner, r.Queue = driver.NewOwner(), false
				if got := locktest.Held(t, b, r); got.Signaled {
					t.Errorf("%s, %v: signalled without a place", name, mode)
				}
			}
		}
		if !b.layout.Redisson {
			continue
		}
		r := request("", driver.Exclusive)
		r.Queue = true
		c := raw(t, testserver.SharedRedis(t).Addr())
		c.HSet(bg, b.layout.Prefix+r.Name, driver.NewOwner()+":1", 1)
		c.PExpire(bg, b.layout.Prefix+r.Name, time.Minute)
		if got := locktest.Held(t, b, r); got.Signaled {
			t.Error("signalled of the end of Java's lock, which may be an RSpinLock")
		}
	}
}
