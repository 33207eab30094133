package redislock

import (
	"errors"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// What an attempt was granted is what others are told from then on: by Inspect and by a refusal, without a renewal.
func TestFenceIsKnownAtOnce(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, k := range keepings {
		b := k.open(t, srv.URL())
		for _, other := range keepings {
			if (other.layout == Redisson) != (k.layout == Redisson) {
				continue
			}
			o := other.open(t, srv.URL())
			for _, mode := range k.modes() {
				if other.off && !mode.Alone() {
					continue // whose holders it does not know
				}
				r := request("", mode)
				r.Limit, r.Meta = 1, map[string]string{"-": "- -1", "w": "w"}
				for range 3 { // also grants between
					acquire(t, b, request("", mode))
				}
				g := acquire(t, b, r)
				acquire(t, b, request("", mode))
				info := must.Get(o.Inspect(t.Context(), r.Name))(t)
				if len(info.Holders) != 1 || info.Holders[0].Fence != g.Fence || info.Holders[0].Mode != mode || info.Holders[0].Meta["-"] != "- -1" {
					t.Errorf("%v %v seen by %v: %+v, want fence %d", k, mode, other, info.Holders, g.Fence)
				} else if held := info.Holders[0].Held; held < 0 || held > time.Minute {
					t.Errorf("%v %v seen by %v: held for %v", k, mode, other, held)
				}
				var refusal *driver.HeldError
				next := request(r.Name, driver.Exclusive)
				_, err := o.Acquire(t.Context(), next)
				if errors.As(err, &refusal) && len(refusal.Holders) == 1 && refusal.Holders[0].Fence != g.Fence {
					t.Errorf("%v %v: %v is refused by fence %d, want %d", k, mode, other, refusal.Holders[0].Fence, g.Fence)
				}
				if mode.Alone() && !b.layout.Redisson && (refusal == nil || len(refusal.Holders) != 1) {
					t.Errorf("%v %v: %v is told %v", k, mode, other, err)
				}
			}
		}
	}
}

// The counter keeps a bounded number of entries: fewer in a cluster, where each slot has one.
func TestCounterKeepsLastEntries(t *testing.T) {
	srv := testserver.Redis(t)
	for counter, most := range map[string]int64{"distlock:fence": 100_000, "distlock:fence:{1}": 100} {
		text := string(must.Get(parts.ReadFile("scripts/fence_stream.lua"))(t)) + "for _ = 1, 120000 do fence(KEYS[1]) end"
		must.Get(srv.Do("EVAL", text, "1", counter))(t)
		if n := raw(t, srv.Addr()).XLen(t.Context(), counter).Val(); n < most || n > most+1000 {
			t.Errorf("%s has %d entries, want about %d", counter, n, most)
		}
	}
}
