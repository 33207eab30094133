package redislock

import (
	"crypto/sha1"
	"encoding/hex"
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

// stringOf opens a backend of the layout "string", and a plain client.
func stringOf(t *testing.T) (*Backend, *redis.Client) {
	srv := testserver.SharedRedis(t)
	return openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
}

// longTurns lets b keep a free lock for an hour for those that are next in its queue, since a busy machine may need longer than
// TurnLife until they ask again. It returns b.
func longTurns(t *testing.T, b *Backend) *Backend {
	t.Helper()
	long := strings.NewReplacer("local turnLife, window = 2000,", "local turnLife, window = 3600000,", "local turnLife = 2000\n", "local turnLife = 3600000\n")
	s := scriptsOf(b)
	own, found := *s.scripts, false
	for mode := range own {
		for _, sc := range []**script{&own[mode].acquire, &own[mode].release} {
			if *sc == nil {
				continue
			}
			old, changed := *sc, **sc
			for pubsub, src := range old.sources {
				if src == nil {
					continue
				}
				text := long.Replace(src().text)
				found = found || text != src().text
				sum := sha1.Sum([]byte(text))
				changed.sources[pubsub] = func() source { return source{text, hex.EncodeToString(sum[:])} }
			}
			*sc = &changed
		}
	}
	if !found {
		t.Error("no script has the life of a turn")
	}
	s.scripts = &own
	return b
}

// refusedInTurn returns how a request is refused that free makes: it frees a lock whose turn is another's. On a busy machine that
// turn may have ended before the request is sent, and free is called again.
func refusedInTurn(t *testing.T, b *Backend, free func() driver.Request) (refusal *driver.HeldError) {
	t.Helper()
	for range 100 {
		began := time.Now()
		r := free()
		_, err := b.Acquire(t.Context(), r)
		if errors.As(err, &refusal) {
			return refusal
		}
		if err != nil || time.Since(began) < driver.TurnLife {
			t.Fatalf("acquire in another's turn: %v", err)
		}
	}
	t.Fatal("each turn ended before the request")
	return nil
}

// places makes requests that are refused, and queued.
func places(t *testing.T, b *Backend, name string, modes ...driver.Mode) []driver.Request {
	t.Helper()
	var all []driver.Request
	for _, mode := range modes {
		r := request(name, mode)
		r.Queue = true
		refused(t, b, r, driver.ErrHeld)
		all = append(all, r)
	}
	return all
}

// mayHold wants exactly these of the waiters to get in now, as they ask in turn.
func mayHold(t *testing.T, b *Backend, waiters []driver.Request, want ...int) {
	t.Helper()
	var got []int
	for i, w := range waiters {
		_, err := b.Acquire(t.Context(), w)
		switch {
		case err == nil:
			got = append(got, i)
		case !errors.Is(err, driver.ErrHeld):
			t.Fatal(err)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v hold, want %v", got, want)
	}
}

func TestSharedHoldsOnTheWire(t *testing.T) {
	for mode, marker := range map[driver.Mode]string{driver.Read: "shared read", driver.Counted: "shared permits 2"} {
		b, c := stringOf(t)
		r, other := request("", mode), request("", mode)
		other.Name, other.TTL = r.Name, 40*time.Minute
		want := []string{"NAME string " + marker + " 30s", "distlock_holders:{NAME} zset OWNER:30s 30s", "distlock_notes:{NAME} hash OWNER= # 30s"}
		acquire(t, b, r)
		expect(t, dump(t, c, r), want...)
		acquire(t, b, r)
		acquire(t, b, other)
		for key, end := range endsOf(t, c, r.Name) {
			if left := time.Until(time.UnixMilli(end)); left < 35*time.Minute && !strings.Contains(key, r.Owner) {
				t.Errorf("%s ends in %v, before the longest hold", key, left)
			}
		}
		release(t, b, other)
		expect(t, dump(t, c, r), want...)
		release(t, b, r)
		expect(t, dump(t, c, r))

		short := request(r.Name, mode)
		short.TTL = 30 * time.Millisecond
		acquire(t, b, short)
		eventually(t, "nothing is left", func() bool { return len(dump(t, c, r)) == 0 })
	}
}

func TestWriteHoldsOnTheWire(t *testing.T) {
	b, c := stringOf(t)
	r := request("", driver.Write)
	acquire(t, b, r)
	first := c.Get(t.Context(), r.Name).Val()
	acquire(t, b, r)
	acquire(t, b, r)
	again := c.Get(t.Context(), r.Name).Val()
	id := first[len(r.Owner)+2 : len(first)-1]
	if first != r.Owner+"  "+id+"w" || again[len(again)-len(id)-2:] != ","+id+"w" {
		t.Errorf("the first fence and a w at the end: %q, %q", first, again)
	}
	info := must.Get(b.Inspect(t.Context(), r.Name))(t)
	if info.Mode != driver.Write || len(info.Holders) != 1 || info.Holders[0].Owner != r.Owner || info.Holders[0].Mode != driver.Write {
		t.Errorf("inspect: %+v", info)
	}
	fence := info.Holders[0].Fence
	r.Mode = driver.Read
	acquire(t, b, r)
	info = must.Get(b.Inspect(t.Context(), r.Name))(t)
	if info.Mode != driver.Read || len(info.Holders) != 1 || info.Holders[0].Fence <= fence || info.Holders[0].Held < 0 {
		t.Errorf("inspect after the downgrade: %+v", info)
	}
	r.Mode = driver.Write // the answer to the downgrade was lost
	release(t, b, r)
	expect(t, dump(t, c, r))
}

// Waiters of all kinds get in as they came: readers together, permits as far as they go, the others alone.
func TestKindsInOneQueue(t *testing.T) {
	b, c := stringOf(t)
	longTurns(t, b)
	x, w, r, p := driver.Exclusive, driver.Write, driver.Read, driver.Counted
	held := request("", x)
	acquire(t, b, held)
	line := places(t, b, held.Name, r, r, w, r, p, p, p, r, x)
	turn := func(want ...int) {
		t.Helper()
		for range 2 { // the second time the holders ask again
			mayHold(t, b, line, want...)
		}
		for _, i := range want {
			release(t, b, line[i])
		}
		line = line[len(want):]
	}
	info := must.Get(b.Inspect(t.Context(), held.Name))(t)
	for i, waiter := range info.Waiters {
		if waiter.Owner != line[i].Owner || waiter.Mode != line[i].Mode {
			t.Errorf("place %d is %+v, want %+v", i, waiter, line[i].Hold)
		}
	}
	release(t, b, held)
	turn(0, 1)
	turn(0) // the writer
	turn(0)
	turn(0, 1) // permits
	turn(0)
	turn(0)
	turn(0)
	expect(t, dump(t, c, held))
}

// A writer among readers gets in when those before it have left, and no reader passes it.
func TestWriterAmongReaders(t *testing.T) {
	b, _ := stringOf(t)
	longTurns(t, b)
	first := request("", driver.Read)
	acquire(t, b, first)
	writer := places(t, b, first.Name, driver.Write)[0]
	behind := places(t, b, first.Name, driver.Read, driver.Read)
	refused(t, b, request(first.Name, driver.Read), driver.ErrHeld)
	mayHold(t, b, behind)
	release(t, b, first)
	mayHold(t, b, behind)
	acquire(t, b, writer)
	mayHold(t, b, behind)
	writer.Mode = driver.Read // a downgrade lets the readers in
	acquire(t, b, writer)
	mayHold(t, b, behind, 0, 1)
}

// A release wakes all that it lets in, and nobody else.
func TestReleaseWakesAllThatItLetsIn(t *testing.T) {
	x, w, r, p := driver.Exclusive, driver.Write, driver.Read, driver.Counted
	for _, test := range []struct {
		holds driver.Mode
		waits []driver.Mode
		woken int
	}{
		{x, []driver.Mode{r, r, r, w, r}, 3}, {w, []driver.Mode{p, p, p, r}, 2}, {r, []driver.Mode{w, r, r}, 1},
		{x, []driver.Mode{w, r}, 1}, {p, []driver.Mode{x, p}, 1}, {r, []driver.Mode{p, p, w}, 2},
	} {
		b, _ := stringOf(t)
		longTurns(t, b)
		held := request("", test.holds)
		acquire(t, b, held)
		line := places(t, b, held.Name, test.waits...)
		var watches []driver.Watch
		for _, waiter := range line {
			watches = append(watches, armWatch(t, b, waiter))
		}
		end := armWatch(t, b, request(held.Name+"end", x)) // messages come in order
		last := request(held.Name+"end", x)
		acquire(t, b, last)
		release(t, b, held)
		for _, watch := range watches[:test.woken] {
			signalled(t, watch)
		}
		release(t, b, last)
		signalled(t, end)
		for i, watch := range watches {
			if i >= test.woken && len(watch.Ready) > 0 {
				t.Errorf("the end of %v woke %d of %v", test.holds, i, test.waits)
			}
			watch.Close()
		}
		end.Close()
	}
}

// More readers than one release notifies: those that get in notify the next.
func TestManyReadersAreWoken(t *testing.T) {
	const readers = 200
	b, _ := stringOf(t)
	longTurns(t, b)
	held := request("", driver.Write)
	acquire(t, b, held)
	var line []driver.Request
	var watches []driver.Watch
	for range readers {
		line = append(line, places(t, b, held.Name, driver.Read)...)
		watches = append(watches, armWatch(t, b, line[len(line)-1]))
	}
	release(t, b, held)
	for i, watch := range watches {
		signalled(t, watch)
		acquire(t, b, line[i])
		watch.Close()
	}
}

// A place that is given up wakes those that it kept out.
func TestPlaceThatLeavesLetsOthersIn(t *testing.T) {
	b, _ := stringOf(t)
	for _, holds := range []driver.Mode{driver.Read, driver.Counted} {
		held := request("", holds)
		acquire(t, b, held)
		line := places(t, b, held.Name, driver.Write, holds)
		watch := armWatch(t, b, line[1])
		release(t, b, line[0])
		signalled(t, watch)
		acquire(t, b, line[1])
		watch.Close()
		if err := b.Release(t.Context(), line[0].Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a place is left twice: %v", err)
		}
	}
}

// An owner has one place, also if it asks for the other side of the lock: it waits there from then on.
func TestOwnerHasOnePlace(t *testing.T) {
	b, _ := stringOf(t)
	longTurns(t, b)
	for _, modes := range [][2]driver.Mode{{driver.Read, driver.Write}, {driver.Write, driver.Read}} {
		held := request("", driver.Exclusive)
		acquire(t, b, held)
		line := places(t, b, held.Name, modes[0], driver.Write)
		line[0].Mode = modes[1]
		refused(t, b, line[0], driver.ErrHeld)
		wantWaiters(t, b, line...)
		release(t, b, held)
		mayHold(t, b, []driver.Request{line[1], line[0]}, 1)
		release(t, b, line[0])
		mayHold(t, b, line[1:], 0)
	}
}

// A writer's attempt that arrives after its downgrade keeps nobody out.
func TestLateAttemptBehindADowngrade(t *testing.T) {
	b, _ := stringOf(t)
	r := request("", driver.Write)
	acquire(t, b, r)
	late := r
	late.Queue, r.Mode = true, driver.Read
	acquire(t, b, r)
	refused(t, b, late, driver.ErrHeld)
	wantWaiters(t, b, late)
	mayHold(t, b, []driver.Request{request(r.Name, driver.Read)}, 0)
}

// wantWaiters wants exactly these to be queued, in this order; one that holds does not wait.
func wantWaiters(t *testing.T, b *Backend, want ...driver.Request) {
	t.Helper()
	info := must.Get(b.Inspect(t.Context(), want[0].Name))(t)
	want = slices.DeleteFunc(slices.Clone(want), func(r driver.Request) bool {
		return slices.ContainsFunc(info.Holders, func(h driver.Holder) bool { return h.Owner == r.Owner })
	})
	if len(info.Waiters) != len(want) {
		t.Errorf("waiters %+v, want %+v", info.Waiters, want)
	}
	for i, w := range info.Waiters[:min(len(want), len(info.Waiters))] {
		if w.Owner != want[i].Owner || w.Mode != want[i].Mode {
			t.Errorf("place %d is %+v, want %+v", i, w, want[i].Hold)
		}
	}
}

// A waiter without a place may follow when the last place is taken.
func TestWaiterWithoutAPlaceFollows(t *testing.T) {
	b, _ := stringOf(t)
	held := request("", driver.Write)
	acquire(t, b, held)
	line := places(t, b, held.Name, driver.Read)
	free := request(held.Name, driver.Read)
	watch := armWatch(t, b, free)
	defer watch.Close()
	release(t, b, held)
	acquire(t, b, line[0])
	signalled(t, watch)
	acquire(t, b, free)
}

// Dead places hold up nobody for longer than they live, in each mode; a free lock is kept for all that it lets in, for their turn only.
func TestDeadPlacesOfEachKind(t *testing.T) {
	b, c := stringOf(t)
	for _, dead := range allModes {
		var line []driver.Request
		refusal := refusedInTurn(t, b, func() driver.Request {
			held := request("", driver.Exclusive)
			acquire(t, b, held)
			line = places(t, b, held.Name, dead, dead, driver.Write)
			release(t, b, held)
			return line[2]
		})
		if refusal.Retry <= 0 || refusal.Retry > driver.TurnLife+2*time.Millisecond {
			t.Errorf("%v: behind a dead place the next try is after %v", dead, refusal)
		}
		tickets := b.layout.QueueKeys(line[0].Name)[1]
		for i, place := range line[:2] {
			left := time.Until(scoreOf(t, c, tickets, placeOf(b, place)))
			if kept := left > driver.TurnLife+time.Second; kept != (i > 0 && dead.Alone()) {
				t.Errorf("%v: place %d ends in %v", dead, i, left)
			}
			c.ZAdd(t.Context(), tickets, zOf(placeOf(b, place), 1))
		}
		acquire(t, b, line[2])
		release(t, b, line[2])
	}
}

// A place that has lost its end, by hand, is gone, and breaks no attempt of others.
func TestPlaceWithoutAnEnd(t *testing.T) {
	b, c := stringOf(t)
	longTurns(t, b)
	held := request("", driver.Exclusive)
	acquire(t, b, held)
	line := places(t, b, held.Name, driver.Read, driver.Read, driver.Write)
	must.OK(t, c.ZRem(t.Context(), b.layout.QueueKeys(held.Name)[1], placeOf(b, line[1])).Err())
	release(t, b, held)
	refused(t, b, line[2], driver.ErrHeld)
	mayHold(t, b, line, 0)
}

// A name that is deleted by hand is free: what was kept beside it counts for nothing.
func TestDeletedNameIsFree(t *testing.T) {
	b, c := stringOf(t)
	for _, mode := range []driver.Mode{driver.Read, driver.Counted} {
		for _, next := range allModes {
			old := request("", mode)
			acquire(t, b, old)
			c.Del(t.Context(), old.Name)
			r := request(old.Name, next)
			acquire(t, b, r)
			if err := b.Renew(t.Context(), []driver.Hold{old.Hold})[0]; !errors.Is(err, driver.ErrLost) {
				t.Errorf("%v, then %v: renew: %v", mode, next, err)
			}
			if err := b.Release(t.Context(), old.Hold); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%v, then %v: release: %v", mode, next, err)
			}
			info := must.Get(b.Inspect(t.Context(), r.Name))(t)
			if len(info.Holders) != 1 || info.Holders[0].Owner != r.Owner || info.Mode != next {
				t.Errorf("%v, then %v: inspect: %+v", mode, next, info)
			}
			renewed(t, b, r.Hold)
			release(t, b, r)
		}
	}
}

// A release ends the place of an owner whose hold had ended before it stood in line.
func TestPlaceBehindAnEndedHold(t *testing.T) {
	b, c := stringOf(t)
	first, r := request("", driver.Read), request("", driver.Read)
	r.Name, r.Queue = first.Name, true
	acquire(t, b, first)
	acquire(t, b, r)
	must.OK(t, c.ZAddXX(t.Context(), holdersKey(r.Name), zOf(r.Owner, 1)).Err())
	places(t, b, r.Name, driver.Write)
	refused(t, b, r, driver.ErrHeld)
	release(t, b, r)
	if info := must.Get(b.Inspect(t.Context(), r.Name))(t); len(info.Waiters) != 1 {
		t.Errorf("waiters %+v, want the writer", info.Waiters)
	}
}

// A limit beyond what a Lua number has exactly is one limit in all calls.
func TestVeryLargeLimit(t *testing.T) {
	b, _ := stringOf(t)
	r := request("", driver.Counted)
	r.Limit = 1<<53 + 1
	acquire(t, b, r)
	acquire(t, b, r)
	renewed(t, b, r.Hold)
	info := must.Get(b.Inspect(t.Context(), r.Name))(t)
	if info.Limit != r.Limit || len(info.Holders) != 1 {
		t.Errorf("inspect: %+v", info)
	}
	release(t, b, r)
}

// A marker without its holders, as after an eviction, keeps others out until it ends, and can be broken.
func TestMarkerWithoutHolders(t *testing.T) {
	b, c := stringOf(t)
	r := request("", driver.Read)
	acquire(t, b, r)
	c.Del(t.Context(), holdersKey(r.Name))
	refused(t, b, request(r.Name, driver.Write), driver.ErrHeld)
	info := must.Get(b.Inspect(t.Context(), r.Name))(t)
	if info.Mode != driver.Read || len(info.Holders) != 1 || !info.Holders[0].Foreign {
		t.Fatalf("inspect: %+v", info)
	}
	forced := driver.Hold{Name: r.Name, Owner: info.Holders[0].Owner, Mode: info.Holders[0].Mode}
	if err := b.Release(t.Context(), forced); err != nil {
		t.Errorf("force unlock: %v", err)
	}
	acquire(t, b, request(r.Name, driver.Write))
}

// The lock outlives no holder: it ends with the last one that is left.
func TestSharedLockEndsWithItsLastHolder(t *testing.T) {
	b, c := stringOf(t)
	long, short := request("", driver.Read), request("", driver.Read)
	short.Name, long.TTL = long.Name, time.Hour
	acquire(t, b, short)
	acquire(t, b, long)
	release(t, b, long)
	if left := c.PTTL(t.Context(), long.Name).Val(); left > short.TTL+time.Second {
		t.Errorf("the lock ends in %v, its holder in %v", left, short.TTL)
	}
}

// What is kept of holders that have ended goes with the next attempt, while others hold.
func TestNotesOfEndedHolders(t *testing.T) {
	b, c := stringOf(t)
	long := request("", driver.Read)
	acquire(t, b, long)
	for range 100 {
		r := request(long.Name, driver.Read)
		r.TTL = 10 * time.Millisecond
		acquire(t, b, r)
	}
	notes := b.layout.Mode(driver.Read).Keys(nil, long.Name, "")[2]
	eventually(t, "the notes of those that have ended are gone", func() bool {
		r := request(long.Name, driver.Read)
		acquire(t, b, r)
		release(t, b, r)
		return c.HLen(t.Context(), notes).Val() == 1
	})
	renewed(t, b, long.Hold)
}

// A hold that was taken by SET, without a fence in its value, keeps its age when it is asked for again.
func TestHoldTakenWithoutAScript(t *testing.T) {
	b, c := stringOf(t)
	for mode, letter := range map[driver.Mode]string{driver.Exclusive: "", driver.Write: "w"} {
		r := request("", mode)
		c.Set(t.Context(), r.Name, r.Owner+"  -60000"+letter, 30*time.Second) // half a minute ago
		acquire(t, b, r)
		for range 2 {
			h := must.Get(b.Inspect(t.Context(), r.Name))(t).Holders[0]
			if h.Owner != r.Owner || h.Foreign || h.Held < 29*time.Second || h.Held > tooLong {
				t.Errorf("%v: inspect: %+v", mode, h)
			}
			if mode == driver.Write {
				r.Mode = driver.Read
				acquire(t, b, r)
			}
		}
		release(t, b, r)
	}
}
