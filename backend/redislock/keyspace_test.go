package redislock

import (
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// notifying lets servers tell of keys that end.
func notifying(t testing.TB, servers ...*testserver.RedisServer) {
	t.Helper()
	for _, s := range servers {
		if _, err := s.Do("CONFIG", "SET", "notify-keyspace-events", "Kgx"); err != nil {
			t.Fatal(err)
		}
	}
}

// inLine is a request that stands in line.
func inLine(r driver.Request) driver.Request {
	r.Queue = true
	return r
}

// silentHolder takes a lock as those do who publish nothing.
func silentHolder(t testing.TB, c *redis.Client, name string, ttl time.Duration) {
	t.Helper()
	if ok, err := c.SetNX(t.Context(), name, "somebody", ttl).Result(); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

// A lock that ends without a message wakes who waits, in line or not. Nobody polls here.
func wakesWithoutMessages(t *testing.T, b *Backend, at func(name string) *redis.Client) {
	for _, wants := range []func(driver.Request) driver.Request{inLine, func(r driver.Request) driver.Request { return r }} {
		r := wants(request("", driver.Exclusive))
		c := at(r.Name)
		silentHolder(t, c, r.Name, time.Minute)
		refused(t, b, r, driver.ErrHeld)
		w := armWatch(t, b, r)
		c.Del(t.Context(), r.Name)
		signalled(t, w)
		w.Close()
		acquire(t, b, r)
		release(t, b, r)

		silentHolder(t, c, r.Name, time.Minute)
		w = armWatch(t, b, r)
		c.PExpire(t.Context(), r.Name, 20*time.Millisecond)
		// A server with many keys may be long in noticing, unless somebody looks.
		eventually(t, "the lock has ended", func() bool { return c.Exists(t.Context(), r.Name).Val() == 0 })
		signalled(t, w)
		w.Close()
	}
}

func TestKeyspace(t *testing.T) {
	srv := testserver.SharedRedis(t)
	notifying(t, srv)
	eachOpener(t, func(t *testing.T, o opener) {
		b := o.open(t, srv.Addr(), Options{Keyspace: true})
		wakesWithoutMessages(t, b, func(string) *redis.Client { return raw(t, srv.Addr()) })
	})
}

func TestKeyspaceOfACluster(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	notifying(t, g.Masters()...)
	for _, p := range []PubSub{PubSubOn, PubSubOff, PubSubBoth} {
		t.Run(string(p), func(t *testing.T) {
			eachWay(t, clusterWays, func(t *testing.T, w way) {
				b := w.open(t, g.Addrs(), Options{Keyspace: true, PubSub: p}, newNetwork(t))
				wakesWithoutMessages(t, b, func(name string) *redis.Client { return raw(t, g.NodeOf(name).Addr()) })
				wakesOne(t, b)
			})
		})
	}
}

// Keys of other databases have other channels.
func TestKeyspaceOfADatabase(t *testing.T) {
	srv := testserver.SharedRedis(t)
	notifying(t, srv)
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), DB: 3, MaintNotificationsConfig: noUpgrades})
	t.Cleanup(func() { c.Close() })
	b, err := Open(t.Context(), srv.URL()+"/3?keyspace=true")
	wakesWithoutMessages(t, opened(t, b, err), func(string) *redis.Client { return c })
}

// What frees a lock here ends its key and is published, and wakes one all the same.
func TestKeyspaceWakesOne(t *testing.T) {
	srv := testserver.SharedRedis(t)
	notifying(t, srv)
	eachOpener(t, func(t *testing.T, o opener) {
		for _, layout := range []Layout{String, Redisson} {
			wakesOne(t, o.open(t, srv.Addr(), Options{Layout: layout, Keyspace: true}))
		}
	})
}

func wakesOne(t *testing.T, b *Backend) {
	t.Helper()
	for _, c := range entrances {
		r := request("", c.holds)
		acquire(t, b, r)
		watches, _ := armMany(t, b, r.Name, c.waits, 3)
		release(t, b, r)
		caughtUp(t, b, r.Name)
		want := c.want
		if b.voice.speech() == bothWays {
			want = min(want+1, len(watches)) // it is published twice
		}
		if n := signals(watches); n != want {
			t.Errorf("the end of %v woke %d of %v, want %d", c.holds, n, c.waits, want)
		}
		for _, w := range watches {
			w.Close()
		}
	}
}

// caughtUp returns when all has been heard that was told of a name until now: what is
// told later, of another lock of the same slot, has been heard.
func caughtUp(t testing.TB, b *Backend, name string) {
	t.Helper()
	later := request("{"+name+"}later", driver.Exclusive)
	acquire(t, b, later)
	w := armWatch(t, b, request(later.Name, driver.Exclusive))
	defer w.Close()
	release(t, b, later)
	signalled(t, w)
}

// Of those in line the first is woken, once, and none of the others; nor a second one
// of those who do not stand there.
func TestKeyspaceInLine(t *testing.T) {
	srv := testserver.SharedRedis(t)
	notifying(t, srv)
	b := openOwn(t, srv.Addr(), Options{Keyspace: true})
	c := raw(t, srv.Addr())
	for _, end := range []string{"release", "silent"} {
		holder := request("", driver.Exclusive)
		if end == "release" {
			acquire(t, b, holder)
		} else {
			silentHolder(t, c, holder.Name, time.Minute)
		}
		var watches []driver.Watch
		for i := range 4 {
			r := request(holder.Name, driver.Exclusive)
			r.Queue = i >= 2
			refused(t, b, r, driver.ErrHeld)
			watches = append(watches, armWatch(t, b, r))
		}
		if end == "release" {
			release(t, b, holder)
		} else {
			c.Del(t.Context(), holder.Name)
		}
		caughtUp(t, b, holder.Name)
		var got []int
		for _, w := range watches {
			got = append(got, len(w.Ready))
		}
		for _, w := range watches {
			w.Close()
		}
		if !slices.Equal(got, []int{1, 0, 1, 0}) {
			t.Errorf("%s: signals %v", end, got)
		}
	}
}

// Who may not hear of keys, or is told nothing of them, is told of releases all the same.
func TestKeyspaceDenied(t *testing.T) {
	acl := testserver.File(t, "users.acl", "user default on nopass ~* +@all resetchannels &distlock_free:*\n")
	srv := testserver.Redis(t, "--aclfile", acl, "--notify-keyspace-events", "Kgx")
	mute := testserver.Redis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		for _, s := range []*testserver.RedisServer{srv, mute} {
			b := o.open(t, s.Addr(), Options{Keyspace: true})
			for range 2 {
				r := request("", driver.Exclusive)
				acquire(t, b, r)
				w := armWatch(t, b, request(r.Name, driver.Exclusive))
				release(t, b, r)
				signalled(t, w)
				w.Close()
			}
		}
	})
}
