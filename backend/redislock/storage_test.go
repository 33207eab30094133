package redislock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

func TestStringOnTheWire(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	r.Meta = map[string]string{"pid": "7", "host": "a b"}
	m := listen(t, c, "distlock_free:{"+r.Name+"}")

	g := acquire(t, b, r)
	expect(t, dump(t, c, r), "NAME string OWNER host=a+b&pid=7 # 30s")
	value := c.Get(t.Context(), r.Name).Val()
	again := acquire(t, b, r)
	if again.Fence <= g.Fence {
		t.Errorf("asked again: fence %d, had %d", again.Fence, g.Fence)
	}
	if next := c.Get(t.Context(), r.Name).Val(); next == value || len(next) <= len(value) {
		t.Errorf("asked again: value %q, want both fences behind %q", next, value)
	}
	release(t, b, r)
	expect(t, dump(t, c, r))
	m.next("distlock_free:{"+r.Name+"}", "0")
}

// Everybody who locks with SET NX PX and us keep each other out.
func TestStringAmongForeignLocks(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
	ctx := t.Context()
	r := request("", driver.Exclusive)

	if ok := c.SetNX(ctx, r.Name, "theirs", time.Minute).Val(); !ok {
		t.Fatal("they can't lock a free name")
	}
	var held *driver.HeldError
	if err := refused(t, b, r, driver.ErrHeld); !errors.As(err, &held) {
		t.Fatal(err)
	}
	if held.Retry < 50*time.Second || len(held.Holders) != 1 || held.Holders[0].Owner != "theirs" {
		t.Errorf("refused with %+v", held)
	}
	if err := b.Release(ctx, r.Hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release of their lock: %v", err)
	}
	info, err := b.Inspect(ctx, r.Name)
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("inspect: %+v, %v", info, err)
	}
	forced := r.Hold
	forced.Owner = info.Holders[0].Owner
	if err := b.Release(ctx, forced); err != nil {
		t.Errorf("force unlock of what was inspected: %v", err)
	}
	acquire(t, b, r)
	if ok := c.SetNX(ctx, r.Name, "theirs", time.Minute).Val(); ok {
		t.Error("they lock what we hold")
	}
}

// A foreign value that merely begins as ours does is not ours.
func TestStringOwnerIsComparedWhole(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{}), raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	for _, value := range []string{r.Owner + "x", r.Owner[:35]} {
		c.Set(t.Context(), r.Name, value, time.Minute)
		refused(t, b, r, driver.ErrHeld)
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release of %q: %v", value, err)
		}
		if errs := b.Renew(t.Context(), []driver.Hold{r.Hold}); !errors.Is(errs[0], driver.ErrLost) {
			t.Errorf("renewal of %q: %v", value, errs[0])
		}
	}
}

// A counter that can't be used is an error, and leaves no lock without a holder.
func TestStringBadCounterTakesNothing(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{Prefix: "badcounter:"}), raw(t, srv.Addr())
	c.Set(t.Context(), "badcounter:distlock:fence", "text", 0)
	r := request("", driver.Exclusive)
	refused(t, b, r, driver.ErrInvalid)
	expect(t, dump(t, c, r))
}

func TestFencesIncreaseWhenTheCounterIsLost(t *testing.T) {
	srv := testserver.Redis(t)
	c := raw(t, srv.Addr())
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
			r := request("", mode)
			r.Fences = 1000
			last := acquire(t, b, r).Last()
			c.FlushAll(t.Context())
			if next := acquire(t, b, r).Fence; next <= last {
				t.Errorf("%s %v: fence %d after all was lost, had %d", layout, mode, next, last)
			}
			c.FlushAll(t.Context())
		}
	}
}

// A thousand fences in one millisecond use up what its number can tell apart.
func TestFencesIncreaseThroughABusyMillisecond(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{Prefix: "busy:"}), raw(t, srv.Addr())
	// The clock has gone back by an hour: ids go on in the last millisecond.
	ahead := time.Now().Add(time.Hour).UnixMilli()
	c.Do(t.Context(), "XADD", "busy:distlock:fence", "MAXLEN", "0", fmt.Sprint(ahead)+"-990", "", "")
	r := request("", driver.Exclusive)
	r.Fences = fencesPerGrant
	last := uint64(0)
	for range 30 {
		g := acquire(t, b, r)
		if g.Fence <= last {
			t.Fatalf("fence %d after %d", g.Fence, last)
		}
		last = g.Last()
	}
	if want := uint64(ahead+1) * 1000 * fencesPerGrant; last < want || last > want+100*fencesPerGrant {
		t.Errorf("the last fence is %d, want a little more than %d", last, want)
	}
}

// The first fence of a millisecond has the clock's microseconds, and no id is smaller than what the counter gave.
func TestIDOfAFence(t *testing.T) {
	c := raw(t, testserver.SharedRedis(t).Addr())
	source := must.Get(parts.ReadFile("scripts/fence_stream.lua"))(t)
	const clock = `
		local redis = {call = function(command, _, _, _, _, id)
			if command == 'TIME' then
				return {ARGV[2], ARGV[3]}
			end
			return id == '*' and ARGV[1] or id
		end}
	`
	for _, test := range []struct{ next, seconds, micros, want string }{
		{"5000-0", "5", "123", "5000-123"},
		{"5000-0", "5", "0", "5000-0"},
		{"5000-0", "5", "1000", "5001-0"}, // the clock went on between the two commands
		{"5000-0", "4", "999700", "5000-0"},
		{"5000-7", "5", "123", "5000-7"},
		{"5000-999", "5", "999", "5000-999"},
		{"5000-1000", "5", "999", "5001-0"},
	} {
		got, err := c.Eval(t.Context(), clock+string(source)+"return fence('')", nil, test.next, test.seconds, test.micros).Text()
		if err != nil || got != test.want {
			t.Errorf("%+v: %s, %v", test, got, err)
		}
	}
}

// A permit that Java took without a lease has no end.
func TestPermitWithoutEnd(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	c := raw(t, srv.Addr())
	r := request("", driver.Counted)
	r.Limit = 1
	c.Set(t.Context(), r.Name, 0, 0)
	c.ZAdd(t.Context(), layouts.PermitsKey(r.Name), redis.Z{Score: 922337203685477, Member: "0123456789abcdef"})
	_, err := b.Acquire(t.Context(), r)
	held := (*driver.HeldError)(nil)
	if !errors.As(err, &held) || held.Retry != 0 {
		t.Errorf("acquire: %#v", err)
	}
	info, err := b.Inspect(t.Context(), r.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left >= 0 {
		t.Errorf("inspect: %+v, %v", info, err)
	}
}

// A permit of Redisson's keeps a mutex of that name out, with an error that says so.
func TestSemaphoreIsNoMutex(t *testing.T) {
	b := openOwn(t, testserver.SharedRedis(t).Addr(), Options{Layout: Redisson})
	counted := request("", driver.Counted)
	acquire(t, b, counted)
	for _, queue := range []bool{false, true} {
		mutex := request(counted.Name, driver.Exclusive)
		mutex.Queue = queue
		err := refused(t, b, mutex, driver.ErrInvalid)
		if re, is := redisconn.AsReply(err); is && strings.Contains(err.Error(), re.Text) {
			t.Errorf("%v: Redis' own words are of no use", err)
		}
	}
}

// A release wakes the first of Java's fair waiters that is alive.
func TestReleaseTellsALiveFairWaiter(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	c := raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	now := time.Now().UnixMilli()
	c.RPush(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[0], "dead:1", "live:2")
	c.ZAdd(t.Context(), layouts.Redisson("", false).QueueKeys(r.Name)[2], redis.Z{Score: float64(now - 1000), Member: "dead:1"}, redis.Z{Score: float64(now + 300000), Member: "live:2"})
	live := c.Subscribe(t.Context(), layouts.LockChannel(r.Name)+":live:2")
	defer live.Close()
	must.Get(live.Receive(t.Context()))(t)
	release(t, b, r)
	if m, err := live.ReceiveTimeout(t.Context(), tooLong); err != nil || m.(*redis.Message).Payload != "0" {
		t.Errorf("the live waiter got %v, %v", m, err)
	}
}

func TestFloorOutOfRange(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, l := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: l, Prefix: "floor:"})
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		r.Floor = 1<<63 - 1
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: renew: %v, want ErrInvalid", l, err)
		}
		if g := acquire(t, b, r); g.Fence >= 1<<62 {
			t.Errorf("%s: fence %d", l, g.Fence)
		}
	}
}

// A hold whose key was replaced by other data is gone.
func TestHoldOfAnotherTypeIsLost(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	c := raw(t, srv.Addr())
	for _, m := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
		r := request("", m)
		acquire(t, b, r)
		c.Del(t.Context(), r.Name, layouts.PermitsKey(r.Name))
		c.Set(t.Context(), r.Name, "another's", time.Minute)
		c.Set(t.Context(), layouts.PermitsKey(r.Name), "x", time.Minute)
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: renew: %v, want ErrLost", m, err)
		}
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: release: %v, want ErrLost", m, err)
		}
	}
}

func TestPieceOfAPasswordIsNotQuoted(t *testing.T) {
	for _, url := range []string{"redis://:1234/secret@localhost:6379/0", "redis://:12?secret@localhost:6379/0"} {
		_, err := Open(t.Context(), url)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Other data is neither shown as a lock nor, therefore, broken as one.
func TestOtherDataIsNoLock(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Prefix: "other:"})
	c := raw(t, srv.Addr())
	c.Set(t.Context(), "other:config", `{"app":1}`, 0)
	c.LPush(t.Context(), "other:list", 1)
	c.HSet(t.Context(), "other:users", "u1", 1, "u2", 2)
	for _, name := range []string{"config", "list", "users"} {
		if info, err := b.Inspect(t.Context(), name); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %+v, %v, want ErrInvalid", name, info, err)
		}
	}
	c.Set(t.Context(), "other:lock", "whatever random string", time.Minute)
	if info, err := b.Inspect(t.Context(), "lock"); err != nil || len(info.Holders) != 1 {
		t.Errorf("another client's lock: %+v, %v", info, err)
	}
}
