package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// While a slot moves, its exclusive locks and writers' that nobody waits for are taken, renewed and released, wherever their keys and
// the counter of their fences are, by clients that know the scripts and by others.
func TestLocksOfASlotThatMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, counter := range []string{"here", "there", "absent"} {
		t.Run("counter "+counter, func(t *testing.T) {
			tag := "{" + driver.NewOwner() + "}"
			slot := &movingSlot{g: g, slot: g.Slot(tag)}
			from := g.Owner(slot.slot)
			to := otherMaster(g, from)
			var users []*slotUser
			for _, w := range clusterWays {
				for _, mode := range aloneModes {
					users = append(users, &slotUser{
						name: fmt.Sprint(w.name, " ", mode), tag: tag + w.name + mode.String() + " ", mode: mode, fences: map[string]uint64{},
						warm: w.open(t, g.Addrs(), Options{}, newNetwork(t)), cold: w.open(t, g.Addrs(), Options{}, newNetwork(t)),
					})
				}
			}
			each := func(do func(t *testing.T, u *slotUser)) {
				var wg sync.WaitGroup
				for _, u := range users {
					wg.Go(func() { t.Run(u.name, func(t *testing.T) { do(t, u) }) })
				}
				wg.Wait()
			}
			for _, u := range users {
				if counter != "absent" {
					u.held = []driver.Request{u.take(t, u.warm, "here"), u.take(t, u.warm, "there"), u.take(t, u.warm, "also there")}
				}
			}
			move := g.StartMove(slot.slot, to)
			for _, u := range users {
				for _, r := range u.held[min(1, len(u.held)):] {
					move.Keys(r.Name)
				}
			}
			if counter == "there" {
				move.Keys(slot.keys(t, from, "distlock:fence")...)
			}
			each(func(t *testing.T, u *slotUser) { u.whileItMoves(t, false) }) // what was moved may have lived on for the time that it took
			slot.allEnd(t, from)
			slot.allEnd(t, to)
			each(func(t *testing.T, u *slotUser) { u.whileItMoves(t, true) })
			move.Finish()
			each(func(t *testing.T, u *slotUser) { u.behind(t) })
			if left := slot.keys(t, to, ""); len(left) != 1 || !strings.HasPrefix(left[0], "distlock:fence") {
				t.Errorf("left are %q", left)
			}
		})
	}
}

func otherMaster(g *testserver.RedisClusterGroup, than *testserver.RedisServer) *testserver.RedisServer {
	masters := g.Masters()
	return masters[slices.IndexFunc(masters, func(s *testserver.RedisServer) bool { return s != than })]
}

// slotUser uses locks of a slot that moves, by two clients.
type slotUser struct {
	name       string
	mode       driver.Mode
	tag        string   // before names
	warm, cold *Backend // one was used before the slot moves, and one was not
	held       []driver.Request
	fences     map[string]uint64 // the last one of each name
}

// whileItMoves gives back what is held, whose fences may be known, and takes other locks.
func (u *slotUser) whileItMoves(t *testing.T, fences bool) {
	u.refuse(t, u.cold, fences)
	u.refuse(t, u.warm, fences)
	u.renew(t, u.warm)
	u.release(t, u.warm)
	for i, name := range []string{"here", "there", "also there", "free"} {
		u.held = append(u.held, u.take(t, []*Backend{u.cold, u.warm}[i%2], name))
	}
	u.warm, u.cold = u.cold, u.warm
}

// behind gives back what is held, and what is taken behind the move.
func (u *slotUser) behind(t *testing.T) {
	u.renew(t, u.warm)
	u.refuse(t, u.cold, true)
	u.release(t, u.cold)
	u.held = append(u.held, u.take(t, u.warm, "here"), u.take(t, u.cold, "free"))
	u.release(t, u.warm)
}

// take takes a free lock, under a greater fence than it had before.
func (u *slotUser) take(t *testing.T, b *Backend, name string) driver.Request {
	t.Helper()
	r := request(u.tag+name, u.mode)
	grant := must.Get(b.Acquire(t.Context(), r))(t)
	if grant.Fence <= u.fences[name] {
		t.Errorf("%s: the fence %d behind %d", name, grant.Fence, u.fences[name])
	}
	u.fences[name], r.Fence = grant.Fence, grant.Fence
	return r
}

// refuse wants rivals of holders to be told who holds, and under which fence.
func (u *slotUser) refuse(t *testing.T, b *Backend, fence bool) {
	t.Helper()
	for _, r := range u.held {
		_, err := b.Acquire(t.Context(), request(r.Name, u.mode))
		refusal := (*driver.HeldError)(nil)
		if !errors.As(err, &refusal) || refusal.Retry <= 0 || len(refusal.Holders) != 1 || refusal.Holders[0].Owner != r.Owner {
			t.Errorf("a rival for %s: %v", r.Name, err)
		} else if got := refusal.Holders[0].Fence; got != r.Fence && (fence || got > 0) {
			t.Errorf("a rival for %s, whose fence is %d, is told %d", r.Name, r.Fence, got)
		}
	}
}

func (u *slotUser) renew(t *testing.T, b *Backend) {
	t.Helper()
	holds := []driver.Hold{request(u.tag+"lost", u.mode).Hold}
	for _, r := range u.held {
		holds = append(holds, r.Hold)
	}
	errs := b.Renew(t.Context(), holds)
	if !errors.Is(errs[0], driver.ErrLost) {
		t.Errorf("renewing what is not held: %v", errs[0])
	}
	for i, err := range errs[1:] {
		if err != nil {
			t.Errorf("renew %s: %v", holds[i+1].Name, err)
		}
	}
}

func (u *slotUser) release(t *testing.T, b *Backend) {
	t.Helper()
	for _, r := range u.held {
		if err := b.Release(t.Context(), r.Hold); err != nil {
			t.Errorf("release %s: %v", r.Name, err)
		}
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release %s again: %v", r.Name, err)
		}
	}
	u.held = nil
}

// movingSlot is a slot that moves.
type movingSlot struct {
	g    *testserver.RedisClusterGroup
	slot int
}

// keys returns the keys of the slot that a server has and that begin so.
func (m *movingSlot) keys(t *testing.T, s *testserver.RedisServer, prefix string) (keys []string) {
	t.Helper()
	list, _ := must.Get(s.Do("CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.slot), "100"))(t).([]any)
	for _, key := range list {
		if key := key.(string); strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// allEnd wants all keys of the slot but the counter to end.
func (m *movingSlot) allEnd(t *testing.T, s *testserver.RedisServer) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer c.Close()
	for _, key := range m.keys(t, s, "") {
		p := c.Pipeline()
		p.Do(t.Context(), "ASKING")
		left := p.PTTL(t.Context(), key)
		must.Get(p.Exec(t.Context()))(t)
		if left.Val() <= 0 && !strings.HasPrefix(key, "distlock:fence") {
			t.Errorf("the key %s has no end", key)
		}
	}
}

// A slot moves to and fro, key by key, while clients of all kinds take turns: no lock has two holders, no fence falls, and none is
// left held.
func TestLongTurnsWhileASlotMoves(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	tag := "{" + driver.NewOwner() + "}"
	slot := &movingSlot{g: g, slot: g.Slot(tag)}
	type lock struct {
		holders, turns atomic.Int64
		fence          atomic.Uint64
	}
	locks := map[string]*lock{tag + "a": {}, tag + "b": {}, tag + "c": {}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, w := range clusterWays {
		for name, l := range locks {
			b := w.open(t, g.Addrs(), Options{}, newNetwork(t))
			wg.Go(func() {
				for ctx.Err() == nil {
					r := request(name, driver.Exclusive)
					grant, err := b.Acquire(t.Context(), r)
					if err == nil {
						if n := l.holders.Add(1); n != 1 {
							t.Errorf("%s: %d holders", name, n)
						}
						if before := l.fence.Swap(grant.Fence); before >= grant.Fence {
							t.Errorf("%s: the fence %d behind %d", name, grant.Fence, before)
						}
						if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; errors.Is(err, driver.ErrLost) {
							t.Errorf("%s: %v", name, err)
						}
						l.turns.Add(1)
						l.holders.Add(-1)
					}
					if !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrSpent) {
						eventually(t, "released", func() bool {
							err := b.Release(t.Context(), r.Hold)
							return err == nil || errors.Is(err, driver.ErrLost)
						})
					}
				}
			})
		}
	}
	moves := 0
	for ; ctx.Err() == nil; moves++ {
		from := g.Owner(slot.slot)
		move := g.StartMove(slot.slot, otherMaster(g, from))
		for range 3 {
			time.Sleep(50 * time.Millisecond)
			if keys := slot.keys(t, from, ""); len(keys) > 0 {
				move.Keys(keys[rand.N(len(keys))])
			}
		}
		move.Finish()
	}
	wg.Wait()
	for name, l := range locks {
		t.Logf("%s: %d turns in %d moves", name, l.turns.Load(), moves)
		if l.turns.Load() == 0 {
			t.Errorf("%s: no turns", name)
		}
	}
	if left := slot.keys(t, g.Owner(slot.slot), tag); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}
