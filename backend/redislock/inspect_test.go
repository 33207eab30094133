package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// fill writes keys of other programs, n of each type.
func fill(t *testing.T, c *redis.Client, prefix string, n int, types ...string) {
	t.Helper()
	p := c.Pipeline()
	for i := range n {
		for _, kind := range types {
			key := fmt.Sprintf("%s%s:%d", prefix, kind, i)
			switch kind {
			case "string":
				p.Set(bg, key, "value", time.Hour)
			case "number":
				p.Set(bg, key, i, 0)
			case "hash":
				p.HSet(bg, key, "a", 1, "b", 2)
			case "list":
				p.RPush(bg, key, 1)
			case "set":
				p.SAdd(bg, key, 1)
			case "zset":
				p.ZAdd(bg, key, redis.Z{Member: "a"})
			}
		}
	}
	must.Get(p.Exec(bg))(t)
}

// holdAll takes a lock in each mode that b has, and one that is waited for in the queue only.
func holdAll(t *testing.T, b *Backend) (names []string) {
	t.Helper()
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if b.caps.Modes.Has(m) {
			r := request("", m)
			acquire(t, b, r)
			names = append(names, r.Name)
		}
	}
	if b.caps.QueueingOf(driver.Exclusive) != driver.QueueNever {
		first, second := request("", driver.Exclusive), request("", driver.Exclusive)
		second.Name, second.Queue = first.Name, true
		acquire(t, b, first)
		refused(t, b, second, driver.ErrHeld)
		release(t, b, first)
		names = append(names, first.Name)
	}
	slices.Sort(names)
	return names
}

func listed(t *testing.T, b *Backend) (names []string) {
	t.Helper()
	for name, err := range listing(t, b, "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Keys of other programs cost List pages, and no command each.
func TestListIsBoundedByPages(t *testing.T) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			srv := testserver.Redis(t)
			b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
			const each = 2000
			fill(t, c, "other:", each, "string", "number", "list", "set", "zset")
			want := holdAll(t, b)
			usage(t, srv)
			got := listed(t, b)
			if !slices.Equal(got, want) {
				t.Errorf("listed %q, want %q", got, want)
			}
			scripts, rest := usage(t, srv)
			n := countCalls(scripts) + countCalls(rest)
			t.Logf("%d commands for %d keys: %s, %s", n, 5*each, listCalls(scripts), listCalls(rest))
			if n > 5*each/20 {
				t.Errorf("%d commands for %d keys of other programs", n, 5*each)
			}
		})
	}
}

// A hash has to be looked at, for a mode or a holder.
func TestListOfHashes(t *testing.T) {
	for layout, most := range map[Layout]int{String: 1, Redisson: 2} {
		srv := testserver.Redis(t)
		b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
		const hashes = 2000
		fill(t, c, "other:", hashes, "hash")
		usage(t, srv)
		listed(t, b)
		_, calls := usage(t, srv)
		if n := countCalls(calls); n > hashes*most+hashes/20 {
			t.Errorf("%s: %d commands for %d hashes: %s", layout, n, hashes, listCalls(calls))
		}
	}
}

// otherData writes data to Redis that is not a lock.
var otherData = map[string]func(c *redis.Client, key string) error{
	"a word":                  func(c *redis.Client, key string) error { return c.Set(bg, key, "shipped", 0).Err() },
	"a number":                func(c *redis.Client, key string) error { return c.Set(bg, key, 42, 0).Err() },
	"nothing":                 func(c *redis.Client, key string) error { return c.Set(bg, key, "", 0).Err() },
	"a JSON object":           func(c *redis.Client, key string) error { return c.Set(bg, key, `{"id":5}`, 0).Err() },
	"a JSON object that ends": func(c *redis.Client, key string) error { return c.Set(bg, key, `{"id":5}`, time.Hour).Err() },
	"a page that ends": func(c *redis.Client, key string) error {
		return c.Set(bg, key, strings.Repeat("page", 500), time.Hour).Err()
	},
	"a hash":                 func(c *redis.Client, key string) error { return c.HSet(bg, key, "total", 5, "paid", 1).Err() },
	"a hash of one":          func(c *redis.Client, key string) error { return c.HSet(bg, key, "total", 5).Err() },
	"a hash with a mode":     func(c *redis.Client, key string) error { return c.HSet(bg, key, "mode", "dark", "lang", "en").Err() },
	"a hash that is read":    func(c *redis.Client, key string) error { return c.HSet(bg, key, "mode", "read", "lang", "en").Err() },
	"a hash that is written": func(c *redis.Client, key string) error { return c.HSet(bg, key, "mode", "write", "lang", "en").Err() },
	"a list":                 func(c *redis.Client, key string) error { return c.RPush(bg, key, "a").Err() },
	"a set":                  func(c *redis.Client, key string) error { return c.SAdd(bg, key, "a").Err() },
	"a sorted set":           func(c *redis.Client, key string) error { return c.ZAdd(bg, key, redis.Z{Member: "a"}).Err() },
	"a stream": func(c *redis.Client, key string) error {
		return c.XAdd(bg, &redis.XAddArgs{Stream: key, Values: []string{"a", "b"}}).Err()
	},
}

// Other data is refused at once by each kind of lock, in words that help, and stays as it is.
func TestOtherDataIsRefused(t *testing.T) {
	for name, b := range foreignRigs(t) {
		t.Run(name, func(t *testing.T) {
			c := raw(t, testserver.SharedRedis(t).Addr())
			for what, write := range otherData {
				for _, r := range attempts(b) {
					refusesOther(t, b, c, what, write, r)
				}
			}
		})
	}
}

// attempts are one in each mode, and in the queue.
func attempts(b *Backend) []driver.Request {
	var all []driver.Request
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if !b.caps.Modes.Has(m) {
			continue
		}
		r := request("", m)
		all = append(all, r)
		if b.caps.QueueingOf(m) != driver.QueueNever {
			r = request("", m)
			r.Queue = true
			all = append(all, r)
		}
	}
	return all
}

func refusesOther(t *testing.T, b *Backend, c *redis.Client, what string, write func(*redis.Client, string) error, r driver.Request) {
	t.Helper()
	if b.layout.Redisson && r.Mode == driver.Counted && what == "a number" {
		return // may be a Java semaphore
	}
	queue := r.Queue
	r = request("", r.Mode)
	r.Limit, r.Queue = 42, queue // as many as the number in the key, which is no semaphore
	key := b.layout.Prefix + r.Name
	must.OK(t, write(c, key))
	before := c.Dump(bg, key).Val()
	_, err := b.Acquire(t.Context(), r)
	if !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%s, requested as %v: %v, want ErrInvalid", what, r.Mode, err)
		return
	}
	for _, word := range []string{`"` + key + `"`, "?prefix="} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s, requested as %v: the error does not say %s: %v", what, r.Mode, word, err)
		}
	}
	if after := c.Dump(bg, key).Val(); after != before {
		t.Errorf("%s, requested as %v: it has changed", what, r.Mode)
	}
	if keys := c.Keys(bg, "*"+r.Name+"*").Val(); len(keys) != 1 {
		t.Errorf("%s, requested as %v: left behind %q", what, r.Mode, keys)
	}
	if info, err := b.Inspect(t.Context(), r.Name); err == nil && len(info.Holders) > 0 && !info.Holders[0].Foreign {
		t.Errorf("%s: Inspect shows a lock: %+v", what, info)
	}
	for name, err := range listing(t, b, r.Name) {
		t.Errorf("%s: List shows %q, %v", what, name, err)
	}
}

// tokens are written by lock libraries, and by scripts that lock by hand.
var tokens = map[string]struct {
	value string
	ttl   time.Duration
}{
	"redsync":              {"GXkfGqiBkFv4yzDBnVTsyA==", time.Minute},
	"redis-py":             {"5ae2ee8f7d7311efb45a0242ac110002", time.Minute},
	"redis-py, no timeout": {"5ae2ee8f7d7311efb45a0242ac110002", 0},
	"Spring, redlock-rb":   {"5b2d2c3c-4b0e-4f5e-8a38-0d8f3d8d4a1c", time.Minute},
	"a UUID, no TTL":       {"5b2d2c3c-4b0e-4f5e-8a38-0d8f3d8d4a1c", 0},
	"ShedLock":             {"ADDED:2026-01-01T00:00:00.000Z@web1", time.Minute},
	"raw bytes":            {"\x00\xff{\"}\n\r\x80 \x01abcdefghij", time.Minute},
	"by hand":              {"1", time.Minute},
	"by hand, empty":       {"", time.Minute},
	"bsm, with metadata":   {"Zm9vYmFyYmF6cXV4cXV1eA" + `{"host":"web1"}`, time.Minute},
}

// Tokens of others are respected, in the queue too.
func TestTokensOfOthersHold(t *testing.T) {
	for name, b := range foreignRigs(t) {
		if b.layout.Redisson {
			continue // hashes only
		}
		t.Run(name, func(t *testing.T) {
			c := raw(t, testserver.SharedRedis(t).Addr())
			for library, token := range tokens {
				r := request("", driver.Exclusive)
				r.Queue = b.caps.QueueingOf(r.Mode) != driver.QueueNever
				c.Set(bg, b.layout.Prefix+r.Name, token.value, token.ttl)
				_, err := b.Acquire(t.Context(), r)
				held := (*driver.HeldError)(nil)
				if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Foreign || held.Signaled {
					t.Errorf("%s: %#v, want it held by a foreign holder, whose end nobody tells", library, err)
				}
				info, err := b.Inspect(t.Context(), r.Name)
				if err != nil || len(info.Holders) != 1 || !info.Holders[0].Foreign || info.Holders[0].Owner != token.value {
					t.Errorf("%s: inspect: %+v, %v", library, info, err)
				}
				b.Release(t.Context(), r.Hold)
			}
		})
	}
}

// Locks of distlock's and of Redisson's are not foreign.
func TestOwnLocksAreNotForeign(t *testing.T) {
	for name, b := range foreignRigs(t) {
		t.Run(name, func(t *testing.T) {
			for m := driver.Exclusive; m <= driver.Counted; m++ {
				if !b.caps.Modes.Has(m) {
					continue
				}
				r := request("", m)
				r.Meta = map[string]string{"note": strings.Repeat("long {note} ", 500)}
				acquire(t, b, r)
				again := request(r.Name, m)
				if m == driver.Read {
					again.Mode = driver.Write
				}
				if m != driver.Counted {
					refused(t, b, again, driver.ErrHeld)
				}
				info, err := b.Inspect(t.Context(), r.Name)
				if err != nil || len(info.Holders) != 1 || info.Holders[0].Foreign {
					t.Errorf("%v: %+v, %v", m, info, err)
				}
			}
		})
	}
}

// foreignRigs are backends in each way to keep plain locks.
func foreignRigs(t *testing.T) map[string]*Backend {
	srv := testserver.SharedRedis(t)
	open := func(o Options) *Backend {
		o.Prefix = "app:"
		return openOwn(t, srv.Addr(), o)
	}
	return map[string]*Backend{
		"string": open(Options{}), "redisson": open(Options{Layout: Redisson}),
		"scriptless": open(Options{Scripts: ScriptsOff}),
	}
}

// listing are the names that List shows.
func listing(t *testing.T, b *Backend, prefix string) map[string]error {
	names := map[string]error{}
	if err := b.List(t.Context(), prefix, func(name string) bool { names[name] = nil; return true }); err != nil {
		names[""] = err
	}
	return names
}

// A value that changed since it was inspected is not broken.
func TestBreakComparesTheValue(t *testing.T) {
	for name, b := range foreignRigs(t) {
		t.Run(name, func(t *testing.T) {
			c := raw(t, testserver.SharedRedis(t).Addr())
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			info, err := b.Inspect(t.Context(), r.Name)
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("%+v, %v", info, err)
			}
			c.Set(bg, b.layout.Prefix+r.Name, "an order", time.Hour)
			h := driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: r.Mode}
			if err := b.Release(t.Context(), h); !errors.Is(err, driver.ErrLost) {
				t.Errorf("release: %v, want ErrLost", err)
			}
			if v := c.Get(bg, b.layout.Prefix+r.Name).Val(); v != "an order" {
				t.Errorf("the value is %q", v)
			}
		})
	}
}

// The rule for strings is written twice, for servers with scripts and without.
func TestBothRulesForTokensAgree(t *testing.T) {
	rigs := foreignRigs(t)
	c := raw(t, testserver.SharedRedis(t).Addr())
	uuid, hex := driver.NewOwner(), strings.ReplaceAll(driver.NewOwner(), "-", "")
	values := []string{"", "x", "1", "{", "}", "{}", "{]", "[]", "[1]", `{"a":1}`, "{}\n", " {}", uuid, hex, uuid + " a=b 5-1", uuid + "x", hex + "x",
		uuid[:35], hex[:31], strings.ToUpper(uuid), strings.Repeat("x", 1024), strings.Repeat("x", 1025), uuid + " " + strings.Repeat("x", 2000), uuid + strings.Repeat("x", 2000)}
	for _, value := range values {
		for _, ttl := range []time.Duration{0, time.Minute} {
			var got []string
			for _, rig := range []string{"string", "scriptless"} {
				b, r := rigs[rig], request("", driver.Exclusive)
				c.Set(bg, b.layout.Prefix+r.Name, value, ttl)
				_, err := b.Acquire(t.Context(), r)
				_, inspect := b.Inspect(t.Context(), r.Name)
				got = append(got, fmt.Sprint(errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrInvalid), errors.Is(inspect, driver.ErrInvalid)))
			}
			if len(slices.Compact(got)) != 1 || got[0] != "true false false" && got[0] != "false true true" {
				t.Errorf("%.60q with a TTL of %v: held, invalid, no lock to inspect: %q", value, ttl, got)
			}
		}
	}
}

var bg = context.Background()

// In a cluster other data is refused as on one server.
func TestClusterRefusesOtherData(t *testing.T) {
	c := testserver.SharedRedisCluster(t)
	keys := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer keys.Close()
	for _, scripts := range []Scripts{ScriptsAuto, ScriptsOff} {
		b, err := Open(t.Context(), "redis+cluster://"+strings.Join(c.Addrs(), ",")+"/?prefix=app:&scripts="+string(scripts))
		b = opened(t, b, err)
		r := request("", driver.Exclusive)
		keys.Set(bg, "app:"+r.Name, "an order", 0)
		err = refused(t, b, r, driver.ErrInvalid)
		if !strings.Contains(err.Error(), `"app:`+r.Name+`"`) || keys.Get(bg, "app:"+r.Name).Val() != "an order" {
			t.Errorf("scripts %s: %v", scripts, err)
		}
		for name, err := range listing(t, b, r.Name) {
			t.Errorf("scripts %s: List shows %q, %v", scripts, name, err)
		}
	}
}
