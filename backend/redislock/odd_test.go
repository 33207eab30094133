package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// A permit that Java took without a lease has no end.
func TestPermitWithoutEnd(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	c := raw(t, srv.Addr())
	r := request("", driver.Counted)
	r.Limit = 1
	c.Set(t.Context(), r.Name, 0, 0)
	c.ZAdd(t.Context(), permitsKey(r.Name), redis.Z{Score: 922337203685477, Member: "0123456789abcdef"})
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

// A permit keeps a mutex of that name out, with an error that says so; a caller that locks with a number
// is another client's mutex.
func TestSemaphoreIsNoMutex(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	for _, o := range []Options{{}, {Scripts: ScriptsOff}, {Layout: Redisson}} {
		counted := request("", driver.Counted)
		acquire(t, openOwn(t, srv.Addr(), Options{Layout: o.Layout}), counted)
		b := openOwn(t, srv.Addr(), o)
		for _, queue := range []bool{false, b.Caps().Queueing != driver.QueueNever} {
			mutex := request(counted.Name, driver.Exclusive)
			mutex.Queue = queue
			err := refused(t, b, mutex, driver.ErrInvalid)
			if re, is := redisconn.AsReply(err); is && strings.Contains(err.Error(), re.Text) {
				t.Errorf("%+v: %v: Redis' own words are of no use", o, err)
			}
		}
	}
	number := request("", driver.Exclusive)
	c.Set(t.Context(), number.Name, "1", time.Minute)
	refused(t, openOwn(t, srv.Addr(), Options{}), number, driver.ErrHeld)
}

// A release wakes the first of Java's fair waiters that is alive.
func TestReleaseTellsALiveFairWaiter(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{Layout: Redisson})
	c := raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	now := time.Now().UnixMilli()
	c.RPush(t.Context(), javaQueueKeys(r.Name)[0], "dead:1", "live:2")
	c.ZAdd(t.Context(), javaQueueKeys(r.Name)[2], redis.Z{Score: float64(now - 1000), Member: "dead:1"}, redis.Z{Score: float64(now + 300000), Member: "live:2"})
	live := c.Subscribe(t.Context(), lockChannel(r.Name)+":live:2")
	defer live.Close()
	if _, err := live.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, b, r)
	if m, err := live.ReceiveTimeout(t.Context(), 5*time.Second); err != nil || m.(*redis.Message).Payload != "0" {
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
		c.Del(t.Context(), r.Name, permitsKey(r.Name))
		c.Set(t.Context(), r.Name, "another's", time.Minute)
		c.Set(t.Context(), permitsKey(r.Name), "x", time.Minute)
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: renew: %v, want ErrLost", m, err)
		}
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: release: %v, want ErrLost", m, err)
		}
	}
}

// A counter that was deleted or evicted does not shorten the permits that are held.
func TestPermitsOutliveTheirCounter(t *testing.T) {
	srv := testserver.SharedRedis(t)
	b := openOwn(t, srv.Addr(), Options{})
	c := raw(t, srv.Addr())
	long := request("", driver.Counted)
	acquire(t, b, long)
	c.Del(t.Context(), long.Name)
	short := request(long.Name, driver.Counted)
	short.TTL = 50 * time.Millisecond
	acquire(t, b, short)
	if left := c.PTTL(t.Context(), permitsKey(long.Name)).Val(); left < long.TTL/2 {
		t.Errorf("the permits end in %v, want %v", left, long.TTL)
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
