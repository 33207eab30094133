package redislock

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/faultproxy"
	"github.com/distlock/distlock/internal/testserver"
)

// isolatable is a Sentinel deployment in which all go through proxies to the servers:
// replicas, sentinels and clients. unreplicate lets a server's replicas hear no more.
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

// The hole that no client can close: a master dies before its replicas hear of a lock.
// The second holder is let in while the first has every reason to believe; its fence is
// greater all the same, though the counter died with the master.
func TestFailoverHole(t *testing.T) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			g, unreplicate := isolatable(t)
			old := g.Master()
			replicate(t, old, "control")
			unreplicate(old)
			a, b := openSentinel(t, g, layout), openSentinel(t, g, layout)
			start, torn := time.Now(), request("", driver.Exclusive)
			first := acquire(t, a, torn)
			if keys := allKeys(t, old); len(keys) < 3 {
				t.Fatalf("the master that is to die has no lock and counter, but %q", keys)
			}
			// Who asks the replicas is not given what they don't have.
			_, err := openOwn(t, old.Public(), acked(layout)).Acquire(t.Context(), request("", driver.Exclusive))
			short(t, "acquire", err)
			old.Kill()

			now := g.AwaitFailover(old)
			if keys := allKeys(t, now); !slices.Equal(keys, []string{"control"}) {
				t.Fatalf("want the lock and the counter lost with the master, and no more; have %q", keys)
			}
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
		})
	}
}

func openSentinel(t *testing.T, g *testserver.RedisSentinelGroup, layout Layout) *Backend {
	t.Helper()
	b, err := Open(t.Context(), "redis+sentinel://"+strings.Join(g.Addrs(), ",")+"/"+testserver.SentinelName+"?layout="+string(layout))
	return opened(t, b, err)
}

// acquireSoon asks until there is an answer: a client may still be with the old master.
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
	c := raw(t, s.Addr()).Conn() // WAIT counts its own connection's writes only
	defer c.Close()
	if err := c.Set(t.Context(), key, "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Wait(t.Context(), 2, 10*time.Second).Result(); n != 2 || err != nil {
		t.Fatalf("%d replicas have the key, %v", n, err)
	}
}

func allKeys(t *testing.T, s *testserver.RedisServer) []string {
	t.Helper()
	keys, err := raw(t, s.Addr()).Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
