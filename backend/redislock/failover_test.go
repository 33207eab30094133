package redislock

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// isolatable is a Sentinel deployment in which replicas, sentinels and clients all reach the
// servers through proxies. unreplicate cuts off a server's replicas.
func isolatable(t *testing.T) (g *testserver.RedisSentinelGroup, unreplicate func(*testserver.RedisServer)) {
	var proxies sync.Map
	g = testserver.RedisSentinel(t, testserver.RedisOptions{Front: func(addr string) string {
		p := faultproxy.New(t, addr)
		proxies.Store(p.Addr(), p)
		return p.Addr()
	}})
	return g, func(s *testserver.RedisServer) {
		p, _ := proxies.Load(s.Public())
		p.(*faultproxy.Proxy).Unreplicate()
	}
}

// No client can close this hole: a master dies before it replicates a lock. A second client gets
// the lock while the first still believes that it holds it. The second fence is greater anyway,
// although the counter was lost with the master.
func TestLongFailoverHole(t *testing.T) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			g, unreplicate := isolatable(t)
			old := g.Master()
			replicate(t, old, "control")
			unreplicate(old)
			a, b := openSentinel(t, g, layout), openSentinel(t, g, layout)
			start, torn := time.Now(), request("", driver.Exclusive)
			torn.TTL = 5 * time.Minute
			first := acquire(t, a, torn)
			if keys := allKeys(t, old); len(keys) < 3 {
				t.Fatalf("the master that is to die has no lock and counter, but %q", keys)
			}
			// A client that asks for acknowledgement is granted nothing that the replicas don't have.
			_, err := openOwn(t, old.Public(), acked(layout)).Acquire(t.Context(), request("", driver.Exclusive))
			short(t, "acquire", err)
			old.Kill()

			now := g.AwaitFailover(old)
			if keys := allKeys(t, now); !slices.Equal(keys, []string{"control"}) {
				t.Fatalf("want the lock and the counter lost with the master, and no more; have %q", keys)
			}
			twoHolders(t, a, b, torn, first, start)
		})
	}
}

// twoHolders grants b the lock that a was granted at start and believes it still holds. It checks
// the guarantees that remain.
func twoHolders(t *testing.T, a, b *Backend, torn driver.Request, first driver.Grant, start time.Time) {
	t.Helper()
	second := acquireSoon(t, b, request(torn.Name, driver.Exclusive))
	both := first.TTL - time.Since(start)
	if both <= 0 {
		t.Fatal("the first lease ended before the second began")
	}
	t.Logf("two holders for %v, with fences %d and %d", both, first.Fence, second.Fence)
	if second.Fence <= first.Fence {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
	// The first learns of it from its next renewal, and can't take it back.
	var renewed error
	eventually(t, "the first hears from the new master", func() bool {
		renewed = a.Renew(t.Context(), []driver.Hold{torn.Hold})[0]
		return renewed == nil || errors.Is(renewed, driver.ErrLost)
	})
	if renewed == nil {
		t.Error("the first may renew")
	}
	if err := a.Release(t.Context(), torn.Hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release by the first: %v", err)
	}
}

// The same hole with a live master, caused only by processes that end. Sentinels that were down
// during a failover come back, while the sentinels that know of it are down. They still consider
// the old, dead master the current one. They fail over again, away from the master that the first
// failover promoted.
func TestLongFailoverAwayFromALiveMaster(t *testing.T) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			g, unreplicate := isolatable(t)
			old, sentinels := g.Master(), g.Sentinels()
			sentinels[1].Kill()
			sentinels[2].Kill()
			// This stands for an election with a voter that dies before it hears of the outcome.
			eventually(t, "a failover begins", func() bool {
				_, err := sentinels[0].Do("SENTINEL", "FAILOVER", testserver.SentinelName)
				return err == nil
			})
			live := promoted(t, g, sentinels[0], old)
			old.Kill()
			eventually(t, "the other replica follows", func() bool { return copies(t, live, "control", 1) == 1 })
			a := openSentinel(t, g, layout)
			unreplicate(live)
			start, torn := time.Now(), request("", driver.Exclusive)
			torn.TTL = 5 * time.Minute
			first := acquire(t, a, torn)
			sentinels[0].Kill()
			sentinels[1].Start()
			sentinels[2].Start()

			now := g.AwaitFailover(live)
			if _, err := live.Do("PING"); err != nil || now == old {
				t.Fatalf("want a failover away from a live master, to the other replica: %v", err)
			}
			twoHolders(t, a, openSentinel(t, g, layout), torn, first, start)
		})
	}
}

// promoted is the server that a sentinel has made the master in place of old.
func promoted(t *testing.T, g *testserver.RedisSentinelGroup, sentinel, old *testserver.RedisServer) (now *testserver.RedisServer) {
	t.Helper()
	eventually(t, "a replica is promoted", func() bool {
		reply, _ := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", testserver.SentinelName)
		at, _ := reply.([]any)
		for _, s := range g.Members() {
			if len(at) == 2 && s != old && s.Public() == net.JoinHostPort(redisconn.Text(at[0]), redisconn.Text(at[1])) {
				now = s
			}
		}
		return now != nil
	})
	return now
}

func openSentinel(t *testing.T, g *testserver.RedisSentinelGroup, layout Layout) *Backend {
	t.Helper()
	b, err := Open(t.Context(), "redis+sentinel://"+strings.Join(g.Addrs(), ",")+"/"+testserver.SentinelName+"?layout="+string(layout))
	return opened(t, b, err)
}

// acquireSoon retries until there is an answer: a client may still be connected to the old master.
func acquireSoon(t *testing.T, b *Backend, r driver.Request) (g driver.Grant) {
	t.Helper()
	eventually(t, "the new master answers", func() bool {
		var err error
		g, err = b.Acquire(t.Context(), r)
		if errors.Is(err, driver.ErrHeld) || driver.Final(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	return g
}

// replicate writes a key that both replicas have when it returns.
func replicate(t *testing.T, s *testserver.RedisServer, key string) {
	t.Helper()
	if n := copies(t, s, key, 2); n != 2 {
		t.Fatalf("%d replicas have the key", n)
	}
}

// copies writes a key, waits a short time for wanted replicas, and returns how many have it.
func copies(t *testing.T, s *testserver.RedisServer, key string, wanted int) int64 {
	t.Helper()
	c := raw(t, s.Addr()).Conn() // WAIT counts its own connection's writes only
	defer c.Close()
	must.OK(t, c.Set(t.Context(), key, "1", 0).Err())
	n := must.Get(c.Wait(t.Context(), wanted, tooLong).Result())(t)
	return n
}

func allKeys(t *testing.T, s *testserver.RedisServer) []string {
	t.Helper()
	keys := must.Get(raw(t, s.Addr()).Keys(t.Context(), "*").Result())(t)
	return keys
}

// service is one address with one of several servers behind it, as a Kubernetes service
// has: it decides where new connections go.
type service struct {
	now atomic.Pointer[testserver.RedisServer]
}

func (s *service) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", s.now.Load().Addr())
}

var serviceOpeners = []struct {
	name string
	open func(t testing.TB, s *service, opts Options) *Backend
}{{"url", func(t testing.TB, s *service, opts Options) *Backend {
	u, _ := driver.ParseURL("redis://service")
	to := must.Get(parseURL(u))(t)
	to.server.Dialer = s.dial
	b, err := newBackend(to.connect(), &opts, 0)
	return opened(t, b, err)
}}, {"go-redis", func(t testing.TB, s *service, opts Options) *Backend {
	c := redis.NewClient(&redis.Options{Dialer: s.dial, MaintNotificationsConfig: noUpgrades})
	b, err := NewGoRedis(c, &opts)
	c.Close()
	return opened(t, b, err)
}}}

// A failover behind one address, between the read of a key and the change. On the new master, the
// key is a successor's lock and must not be changed.
func TestScriptlessFailoverInBetween(t *testing.T) {
	for _, op := range []string{"release", "renew"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			old, now := testserver.Redis(t), testserver.Redis(t)
			var s service
			s.now.Store(old)
			relay := &relay{dialer: s.dial}
			b := openDialing(t, "redis://service?scripts=off", relay.dial)
			mine := request("", driver.Exclusive)
			acquire(t, b, mine)
			successor := request(mine.Name, driver.Exclusive)
			acquire(t, openOwn(t, now.Addr(), Options{Scripts: ScriptsOff}), successor)
			before := raw(t, now.Addr()).PExpireTime(t.Context(), mine.Name).Val()

			relay.between(func() { demote(t, old); s.now.Store(now) })
			var err error
			if mine.TTL *= 2; op == "renew" {
				err = b.Renew(t.Context(), []driver.Hold{mine.Hold})[0]
			} else {
				err = b.Release(t.Context(), mine.Hold)
			}
			if err == nil {
				t.Errorf("%s of a hold that the new master doesn't know: no error", op)
			}
			c := raw(t, now.Addr())
			if value := c.Get(t.Context(), mine.Name).Val(); !strings.HasPrefix(value, successor.Owner+" ") {
				t.Errorf("the successor's lock is %q", value)
			}
			if after := c.PExpireTime(t.Context(), mine.Name).Val(); after != before {
				t.Errorf("the successor's lock ends at %v, and ended at %v", after, before)
			}
			eventually(t, "the loss is found out", func() bool {
				return errors.Is(b.Release(t.Context(), mine.Hold), driver.ErrLost)
			})
		})
	}
}

// A master that was replaced, and still answers, is left at once.
func TestScriptlessLeavesAReplacedMaster(t *testing.T) {
	old, now := testserver.Redis(t), testserver.Redis(t)
	var master atomic.Value
	master.Store(old.Addr())
	var sentinel relay
	sentinel.handle(func([]string, func(...string) redisconn.Answer) redisconn.Answer {
		host, port, _ := net.SplitHostPort(master.Load().(string))
		return redisconn.Answer{Reply: []any{host, port}}
	})
	to := must.Get(parseURL(must.Get(driver.ParseURL("redis+sentinel://sentinel/master?scripts=off"))(t)))(t)
	to.sentinel.Dialer = sentinel.dial
	b, err := to.open(t.Context(), to.connect())
	b = opened(t, b, err)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	acquire(t, openOwn(t, now.Addr(), Options{}), r)
	renewed(t, b, r.Hold)
	master.Store(now.Addr())
	must.Get(b.client.All(t.Context()))(t) // asks the sentinel
	r.TTL = time.Hour
	renewed(t, b, r.Hold)
	if left := raw(t, now.Addr()).PTTL(t.Context(), r.Name).Val(); left < time.Hour/2 {
		t.Errorf("%v are left at the new master, want the renewal there", left)
	}
}

func demote(t *testing.T, s *testserver.RedisServer) {
	t.Helper()
	must.Get(s.Do("REPLICAOF", "127.0.0.1", "1"))(t)
}

// A server that has become a replica keeps its connections. Behind one address there may be another one by now.
func TestDemotedServerIsLeft(t *testing.T) {
	t.Parallel()
	for _, o := range serviceOpeners {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			old, now := testserver.Redis(t), testserver.Redis(t)
			var s service
			s.now.Store(old)
			b := o.open(t, &s, Options{})
			warm(t, b, driver.Exclusive)
			demote(t, old)
			s.now.Store(now)
			r := request("", driver.Exclusive)
			eventually(t, "locked at the server that is master now", func() bool {
				_, err := b.Acquire(t.Context(), r)
				return err == nil
			})
			release(t, b, r)
		})
	}
}
