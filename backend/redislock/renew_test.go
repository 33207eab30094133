package redislock

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

var allModes = []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted}

// serverTime returns a function that runs a script in one transaction with TIME, and returns the server's clock just
// before the script.
func serverTime(t *testing.T, c *redis.Client, sc *script) func(keys, args []string) time.Time {
	return func(keys, args []string) time.Time {
		t.Helper()
		var now *redis.TimeCmd
		_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			now = p.Time(t.Context())
			p.Eval(t.Context(), sc.sources[redisconn.PubSubClassic]().text, keys, args)
			return nil
		})
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		return now.Val()
	}
}

// endOf returns when a hold ends: a key lives through the millisecond of its end, and
// the member of a sorted set does not.
func endOf(t *testing.T, c *redis.Client, r driver.Request) time.Time {
	t.Helper()
	key, kind := r.Name, c.Type(t.Context(), r.Name).Val()
	switch {
	case r.Mode.Alone():
	case c.Exists(t.Context(), holdersKey(r.Name)).Val() > 0:
		return scoreOf(t, c, holdersKey(r.Name), r.Owner)
	case r.Mode == driver.Counted:
		return scoreOf(t, c, layouts.PermitsKey(r.Name), layouts.PermitID(r.Owner))
	case kind == "hash":
		key = layouts.ReaderKey(r.Name, r.Owner)
	}
	ms, err := c.Do(t.Context(), "PEXPIRETIME", key).Int64()
	if err != nil || ms < 0 {
		t.Fatalf("the end of %s: %d, %v", key, ms, err)
	}
	return time.UnixMilli(ms + 1)
}

func scoreOf(t *testing.T, c *redis.Client, key, member string) time.Time {
	t.Helper()
	ms, err := c.ZScore(t.Context(), key, member).Result()
	if err != nil {
		t.Fatalf("the score of %s in %s: %v", member, key, err)
	}
	return time.UnixMilli(int64(ms))
}

// A life is rounded up. The server's clock is read just before each script, so a life
// that is rounded down is too short in nearly every round.
func TestLivesAreRoundedUp(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	eachLayout(t, func(t *testing.T, layout Layout) {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		s := scriptsOf(b)
		for range 20 {
			for _, mode := range allModes {
				r := request("", mode)
				asked := serverTime(t, c, s.scripts[mode].acquire)(s.acquiring(r))
				wantLife(t, mode.String(), asked, endOf(t, c, r), r.TTL)

				r.TTL *= 2
				asked = serverTime(t, c, s.scripts[mode].acquire)(s.acquiring(r))
				wantLife(t, mode.String()+" again", asked, endOf(t, c, r), r.TTL)

				r.TTL *= 2
				asked = serverTime(t, c, s.scripts[mode].renew)(s.renewing([]driver.Hold{r.Hold}))
				wantLife(t, mode.String()+" renewed", asked, endOf(t, c, r), r.TTL)
				if mode != driver.Exclusive {
					continue
				}
				for waits := driver.Exclusive; waits <= driver.Counted; waits++ {
					if b.Caps().QueueingOf(waits) == driver.QueueNever {
						continue
					}
					next := request(r.Name, waits)
					next.Queue = true
					asked = serverTime(t, c, s.scripts[waits].acquire)(s.acquiring(next))
					wantLife(t, "place", asked, scoreOf(t, c, b.layout.QueueKeys(r.Name)[1], placeOf(b, next)), next.TTL)
				}
			}
		}
	})
}

func wantLife(t *testing.T, what string, asked, end time.Time, ttl time.Duration) {
	t.Helper()
	if short := ttl - end.Sub(asked); short > 0 {
		t.Errorf("%s: lives %v less than its TTL", what, short)
	}
}

// A renewal or an attempt that arrives late, after a renewal for longer, shortens nothing
// that is kept of a hold.
func TestLateCallsShortenNothing(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	eachLayout(t, func(t *testing.T, layout Layout) {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		for _, mode := range allModes {
			r := request("", mode)
			acquire(t, b, r)
			extend(t, b, r.Hold)
			before := endsOf(t, c, r.Name)
			renewed(t, b, r.Hold)
			wantNoShorter(t, mode.String()+" after a late renewal", endsOf(t, c, r.Name), before)
			acquire(t, b, r)
			wantNoShorter(t, mode.String()+" after a late attempt", endsOf(t, c, r.Name), before)
		}
	})
}

// An attempt that arrives late does not shorten a place in the queue.
func TestLateAttemptKeepsItsPlace(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		b, c, r := heldQueue(t, layout)
		next := enqueued(t, b, r.Name)
		late := next
		next.TTL = time.Hour
		refused(t, b, next, driver.ErrHeld)
		before := endsOf(t, c, r.Name)
		refused(t, b, late, driver.ErrHeld)
		wantNoShorter(t, "after a late attempt", endsOf(t, c, r.Name), before)
	})
}

// Without scripts a renewal first looks at what is left. An extension that lands after the
// look makes it look again.
func TestScriptlessRenewalBesideAnExtension(t *testing.T) {
	srv := noScripts(t)
	b, relay := openRelayed(t, srv.Addr(), Options{})
	c := raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	var extended time.Time
	relay.between(func() {
		if extended.IsZero() {
			c.PExpire(t.Context(), r.Name, time.Hour)
			extended = endOf(t, c, r)
		}
	})
	renewed(t, b, r.Hold)
	if end := endOf(t, c, r); extended.IsZero() || end.Before(extended) {
		t.Errorf("ends at %v, want %v or later", end, extended)
	}
}

// A TTL that Redis or its scripts can't count is refused for good; the greatest one that
// the backend claims is not.
func TestTTLOutOfRange(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, o := range []Options{{}, {Layout: Redisson}, {Scripts: ScriptsOff}} {
		b := openOwn(t, srv.Addr(), o)
		for _, mode := range allModes {
			if !b.Caps().Modes.Has(mode) {
				continue
			}
			r := request("", mode)
			r.TTL = driver.MaxTTL
			acquire(t, b, r)
			renewed(t, b, r.Hold)
			next := request(r.Name, mode)
			for _, next.TTL = range []time.Duration{-1, 0, 2*driver.MaxTTL + 1, math.MaxInt64} {
				refused(t, b, next, driver.ErrInvalid)
				if err := b.Renew(t.Context(), []driver.Hold{next.Hold})[0]; !errors.Is(err, driver.ErrInvalid) {
					t.Errorf("%+v %v: renew for %v: %v, want ErrInvalid", o, mode, next.TTL, err)
				}
			}
			release(t, b, r)
		}
	}
}

// A downgrade keeps the life of the writer. A late downgrade keeps the life of the reader.
func TestLateDowngradeShortensNothing(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	eachLayout(t, func(t *testing.T, layout Layout) {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		r := request("", driver.Write)
		acquire(t, b, r)
		extend(t, b, r.Hold)
		before := endOf(t, c, r)
		for _, what := range []string{"a downgrade", "a late downgrade"} {
			r.Mode = driver.Read
			acquire(t, b, r)
			for key, end := range endsOf(t, c, r.Name) {
				if end < before.UnixMilli()-1 {
					t.Errorf("after %s %s ends %d ms earlier", what, key, before.UnixMilli()-1-end)
				}
			}
		}
	})
}

func renewed(t *testing.T, b *Backend, h driver.Hold) {
	t.Helper()
	if err := b.Renew(t.Context(), []driver.Hold{h})[0]; err != nil {
		t.Fatalf("renew %v: %v", h.Mode, err)
	}
}

// extend renews a hold for longer than all that comes later.
func extend(t *testing.T, b *Backend, h driver.Hold) {
	t.Helper()
	h.TTL = time.Hour
	renewed(t, b, h)
}

// endsOf returns when each key of a name ends, and each member of a sorted set, in ms.
func endsOf(t *testing.T, c *redis.Client, name string) map[string]int64 {
	t.Helper()
	keys := must.Get(c.Keys(t.Context(), "*"+name+"*").Result())(t)
	ends := map[string]int64{}
	for _, key := range keys {
		ms := must.Get(c.Do(t.Context(), "PEXPIRETIME", key).Int64())(t)
		if ms < 0 {
			ms = math.MaxInt64
		}
		ends[key] = ms
		for _, z := range c.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
			ends[fmt.Sprintf("%s %q", key, z.Member)] = int64(z.Score)
		}
	}
	return ends
}

func wantNoShorter(t *testing.T, what string, got, before map[string]int64) {
	t.Helper()
	for key, end := range before {
		if got[key] < end {
			t.Errorf("%s: %s ends at %d, want %d or later", what, key, got[key], end)
		}
	}
}

// A server that was a master and has become a replica, without cutting a connection, knows nothing
// of what is held. It must not report that all holds are lost.
func TestLossIsAMastersWord(t *testing.T) {
	master := testserver.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	eachOpener(t, func(t *testing.T, o opener) {
		srv := testserver.Redis(t)
		backends := map[string]*Backend{
			"string":   o.open(t, srv.Addr(), Options{Layout: String}),
			"redisson": o.open(t, srv.Addr(), Options{Layout: Redisson}),
			"none":     o.open(t, srv.Addr(), Options{Scripts: ScriptsOff}),
		}
		type held struct {
			what string
			b    *Backend
			r    driver.Request
		}
		var list []held
		for name, b := range backends {
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
				if !b.Caps().Modes.Has(mode) {
					continue
				}
				r := request("", mode)
				acquire(t, b, r)
				if err := b.Release(t.Context(), request("", mode).Hold); !errors.Is(err, driver.ErrLost) {
					t.Errorf("a master, of nothing: %v", err)
				}
				list = append(list, held{fmt.Sprint(name, " ", mode), b, r})
			}
		}
		must.Get(srv.Do("REPLICAOF", host, port))(t)
		awaitReplica(t, master)
		c := raw(t, srv.Addr())
		eventually(t, "the replica has its master's data", func() bool { return c.Exists(t.Context(), list[0].r.Name).Val() == 0 })
		var wg sync.WaitGroup
		for _, h := range list {
			for what, err := range map[string]func() error{
				"renew":   func() error { return h.b.Renew(t.Context(), []driver.Hold{h.r.Hold})[0] },
				"release": func() error { return h.b.Release(t.Context(), h.r.Hold) },
			} {
				wg.Go(func() {
					err := err()
					unknown(t, h.what+": "+what, err)
					if err == nil || !strings.Contains(err.Error(), "the server is a replica") {
						t.Errorf("%s: %s: %v", h.what, what, err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// A server without memory renews and releases what is held, and grants no locks.
func TestRenewalsWithoutMemory(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	c := raw(t, srv.Addr())
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		var all []driver.Request
		for _, m := range allModes {
			r := request(fmt.Sprint(layout, m), m)
			must.Get(b.Acquire(t.Context(), r))(t)
			all = append(all, r)
		}
		must.OK(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		for _, r := range all {
			if err := errors.Join(b.Renew(t.Context(), []driver.Hold{r.Hold})...); err != nil {
				t.Errorf("%v, layout %v: renew: %v", r.Mode, layout, err)
			}
			if err := b.Release(t.Context(), r.Hold); err != nil {
				t.Errorf("%v, layout %v: release: %v", r.Mode, layout, err)
			}
			// Scripts for permits begin with a write that frees memory, after which Redis refuses nothing.
			if _, err := b.Acquire(t.Context(), r); err == nil && r.Mode != driver.Counted {
				t.Errorf("%v, layout %v: granted", r.Mode, layout)
			}
		}
		must.OK(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
}
