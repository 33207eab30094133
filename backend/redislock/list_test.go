package redislock

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
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
	if _, err := p.Exec(bg); err != nil {
		t.Fatal(err)
	}
}

// holdAll takes a lock in each mode that b has, and one that is waited for in line only.
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
