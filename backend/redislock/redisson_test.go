package redislock

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// These tests write what a Java client has in Redis, by commands of their own, and look
// at what distlock makes of it, and the other way round.

const javaField = "8743c9c0-0795-4907-87fd-6c719a6b4586:52"

func redissonOf(t *testing.T) (*Backend, *redis.Client) {
	srv := testserver.SharedRedis(t)
	return openOwn(t, srv.Addr(), Options{Layout: Redisson}), raw(t, srv.Addr())
}

func TestRedissonLockOnTheWire(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Exclusive)
	r.Meta = map[string]string{"pid": "7"}
	channel := "redisson_lock__channel:{" + r.Name + "}"
	m := listen(t, c, channel)
	for range 2 { // the second time is the same hold: the count stays 1
		acquire(t, b, r)
		expect(t, dump(t, c, r),
			"NAME hash OWNER:1=1 30s",
			"{NAME}:OWNER:distlock string +OWNER pid=7 # 30s",
			"redisson_lock_token:{NAME} string # no TTL")
	}
	release(t, b, r)
	expect(t, dump(t, c, r), "redisson_lock_token:{NAME} string # no TTL")
	m.next(channel, "0")
}

func TestRedissonLockHeldByJava(t *testing.T) {
	b, c := redissonOf(t)
	ctx, r := t.Context(), request("", driver.Exclusive)
	c.HSet(ctx, r.Name, javaField, 2)
	c.PExpire(ctx, r.Name, 20*time.Minute)
	var held *driver.HeldError
	if err := refused(t, b, r, driver.ErrHeld); !errors.As(err, &held) || held.Retry < 15*time.Minute || held.Retry > 20*time.Minute+time.Second {
		t.Errorf("refused with %v", err)
	}
	if err := b.Release(ctx, r.Hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release of Java's lock: %v", err)
	}
	info, err := b.Inspect(ctx, r.Name)
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != javaField {
		t.Fatalf("inspect: %+v, %v", info, err)
	}
	forced := r.Hold
	forced.Owner = javaField
	if err := b.Release(ctx, forced); err != nil {
		t.Errorf("force unlock: %v", err)
	}
	acquire(t, b, r)
}

// Java's tokens and ours take turns on one counter.
func TestRedissonTokensIncreaseTogether(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Exclusive)
	token := "redisson_lock_token:{" + r.Name + "}"
	last := uint64(c.Incr(t.Context(), token).Val())
	for range 3 {
		g := acquire(t, b, r)
		if g.Fence <= last || g.Fences != 1 {
			t.Errorf("ours is %d+%d after %d", g.Fence, g.Fences, last)
		}
		java := uint64(c.Incr(t.Context(), token).Val())
		if java <= g.Fence {
			t.Errorf("Java's is %d after %d", java, g.Fence)
		}
		last = java
	}
	// Ahead of the clock, and beyond what a Lua number can tell apart.
	c.Set(t.Context(), token, uint64(1<<60+1), 0)
	if g := acquire(t, b, r); g.Fence != 1<<60+2 {
		t.Errorf("after %d came %d", uint64(1<<60+1), g.Fence)
	}
}

func TestRedissonFloorIsExact(t *testing.T) {
	b, _ := redissonOf(t)
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	h := r.Hold
	h.Floor = 1<<60 + 1
	if errs := b.Renew(t.Context(), []driver.Hold{h}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if g := acquire(t, b, r); g.Fence != h.Floor+1 {
		t.Errorf("after floor %d came %d", h.Floor, g.Fence)
	}
}

// queueJava puts a waiter into Java's fair line.
func queueJava(t *testing.T, c *redis.Client, name, waiter string, patience time.Duration) {
	ctx := t.Context()
	c.RPush(ctx, "redisson_lock_queue:{"+name+"}", waiter)
	c.ZAdd(ctx, "redisson_lock_timeout:{"+name+"}", redis.Z{Score: float64(time.Now().Add(patience).UnixMilli()), Member: waiter})
}

func TestRedissonFairQueueIsNotPassed(t *testing.T) {
	b, c := redissonOf(t)
	holder, r := request("", driver.Exclusive), request("", driver.Exclusive)
	r.Name = holder.Name
	acquire(t, b, holder)
	queueJava(t, c, r.Name, javaField, 20*time.Minute)
	info, err := b.Inspect(t.Context(), r.Name)
	if err != nil || info.WaiterCount != 1 || info.Waiters[0].Owner != javaField {
		t.Errorf("inspect: %+v, %v", info, err)
	}

	// The first in the queue listens on a channel of its own.
	own := "redisson_lock__channel:{" + r.Name + "}:" + javaField
	m := listen(t, c, own)
	release(t, b, holder)
	m.next(own, "0")

	var held *driver.HeldError
	err = refused(t, b, r, driver.ErrHeld)
	if !errors.As(err, &held) || held.Retry < 15*time.Minute || held.Retry > 20*time.Minute+time.Second {
		t.Errorf("free, but Java is queued: %v", err)
	}
}

func TestRedissonStaleFairQueueIsSwept(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Exclusive)
	queueJava(t, c, r.Name, javaField, -time.Second)
	queueJava(t, c, r.Name, javaField+"2", -time.Second)
	acquire(t, b, r)
	expect(t, dump(t, c, r),
		"NAME hash OWNER:1=1 30s",
		"{NAME}:OWNER:distlock string +OWNER  # 30s",
		"redisson_lock_token:{NAME} string # no TTL")
}

func TestRedissonReadWriteOnTheWire(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Write)
	channel := "redisson_rwlock:{" + r.Name + "}"
	m := listen(t, c, channel)
	token := "redisson_lock_token:{NAME} string # no TTL"
	note := "{NAME}:OWNER:distlock string +OWNER  # 30s"

	acquire(t, b, r)
	expect(t, dump(t, c, r), "NAME hash OWNER:1:write=1 mode=write 30s", note, token)
	r.Mode = driver.Read
	acquire(t, b, r) // downgrade
	m.next(channel, "1")
	read := []string{"NAME hash OWNER:1=1 mode=read 30s", note, token, "{NAME}:OWNER:1:rwlock_timeout:1 string 1 30s"}
	expect(t, dump(t, c, r), read...)
	release(t, b, r)
	m.next(channel, "0")
	expect(t, dump(t, c, r), token)

	acquire(t, b, r)
	expect(t, dump(t, c, r), read...)
	release(t, b, r)
	m.next(channel, "0")
	r.Mode = driver.Write
	acquire(t, b, r)
	release(t, b, r)
	m.next(channel, "1")
	expect(t, dump(t, c, r), token)
}

// A Java reader and we share a lock, and each leaves it as the other needs it.
func TestRedissonReadsBesideJava(t *testing.T) {
	b, c := redissonOf(t)
	ctx, r := t.Context(), request("", driver.Read)
	r.TTL = 30 * time.Minute
	timeout := "{" + r.Name + "}:" + javaField + ":rwlock_timeout:"
	c.HSet(ctx, r.Name, "mode", "read", javaField, 2)
	c.PExpire(ctx, r.Name, 10*time.Minute)
	c.Set(ctx, timeout+"1", 1, 10*time.Minute)
	c.Set(ctx, timeout+"2", 1, 5*time.Minute)

	acquire(t, b, r)
	if got := c.HGet(ctx, r.Name, javaField).Val(); got != "2" {
		t.Errorf("Java's count is %q", got)
	}
	if ttl := c.PTTL(ctx, r.Name).Val(); ttl < 25*time.Minute {
		t.Errorf("the lock ends in %v, before our hold", ttl)
	}
	w := request(r.Name, driver.Write)
	refused(t, b, w, driver.ErrHeld)
	release(t, b, r)
	if ttl := c.PTTL(ctx, r.Name).Val(); ttl > 10*time.Minute || ttl < 8*time.Minute {
		t.Errorf("the lock ends in %v, want Java's 10 min", ttl)
	}
	// Java's process dies: its holds end, its field stays until the next reader leaves.
	acquire(t, b, r)
	c.Del(ctx, timeout+"1", timeout+"2")
	release(t, b, r)
	acquire(t, b, w)
}

// A Java writer may read too. To break its lock ends both.
func TestRedissonWriterThatReads(t *testing.T) {
	b, c := redissonOf(t)
	ctx, r := t.Context(), request("", driver.Write)
	c.HSet(ctx, r.Name, "mode", "write", javaField+":write", 1, javaField, 1)
	c.PExpire(ctx, r.Name, 20*time.Minute)
	c.Set(ctx, "{"+r.Name+"}:"+javaField+":rwlock_timeout:1", 1, 20*time.Minute)
	info, err := b.Inspect(ctx, r.Name)
	if err != nil || info.Mode != driver.Write || len(info.Holders) != 2 {
		t.Fatalf("inspect: %+v, %v", info, err)
	}
	refused(t, b, request(r.Name, driver.Read), driver.ErrHeld)
	refused(t, b, r, driver.ErrHeld)
	forced := r.Hold
	forced.Owner = javaField
	if err := b.Release(ctx, forced); err != nil {
		t.Errorf("force unlock: %v", err)
	}
	acquire(t, b, r)
}

func TestRedissonSemaphoreOnTheWire(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Counted)
	channel := "redisson_sc:{" + r.Name + "}"
	m := listen(t, c, channel)
	token := "redisson_lock_token:{NAME} string # no TTL"
	for range 2 { // the second time is the same permit
		acquire(t, b, r)
		expect(t, dump(t, c, r),
			"NAME string 1 no TTL",
			"{NAME}:timeout zset ID:30s no TTL",
			"{NAME}:OWNER:distlock string +OWNER  # 30s", token)
	}
	release(t, b, r)
	m.next(channel, "2")
	expect(t, dump(t, c, r), "NAME string 2 no TTL", token)
}

func TestRedissonSemaphoreBesideJava(t *testing.T) {
	b, c := redissonOf(t)
	ctx, r := t.Context(), request("", driver.Counted)
	permits := "{" + r.Name + "}:timeout"
	c.Set(ctx, r.Name, 2, 0) // trySetPermits(2)
	soon := time.Now().Add(20 * time.Minute).UnixMilli()
	c.Decr(ctx, r.Name)
	c.ZAdd(ctx, permits, redis.Z{Score: float64(soon), Member: "0123456789abcdef"})

	r.TTL = time.Hour
	acquire(t, b, r)
	var held *driver.HeldError
	err := refused(t, b, request(r.Name, driver.Counted), driver.ErrHeld)
	if !errors.As(err, &held) || held.Retry > 20*time.Minute+time.Second || held.Retry < 15*time.Minute {
		t.Errorf("refused with %v, want Java's 20 min", err)
	}
	other := request(r.Name, driver.Counted)
	other.Limit = 3
	refused(t, b, other, driver.ErrInvalid)

	// Java's permit runs out: ours finds it, and says so on the channel as Java does.
	c.ZAdd(ctx, permits, redis.Z{Score: 1, Member: "0123456789abcdef"})
	channel := "redisson_sc:{" + r.Name + "}"
	m := listen(t, c, channel)
	next := request(r.Name, driver.Counted)
	acquire(t, b, next)
	m.next(channel, "1")
	release(t, b, r)
	release(t, b, next)
	if got := c.Get(ctx, r.Name).Val(); got != "2" {
		t.Errorf("free permits are %q, want 2", got)
	}
}

// A semaphore that Java lets end lives as long as our permit.
func TestRedissonSemaphoreWithATTL(t *testing.T) {
	b, c := redissonOf(t)
	ctx, r := t.Context(), request("", driver.Counted)
	permits := "{" + r.Name + "}:timeout"
	c.Set(ctx, r.Name, 1, 10*time.Minute) // trySetPermits(2, 10 min), and a permit of Java's
	c.ZAdd(ctx, permits, redis.Z{Score: float64(time.Now().Add(10 * time.Minute).UnixMilli()), Member: "0123456789abcdef"})
	c.PExpire(ctx, permits, 10*time.Minute)
	r.TTL = 30 * time.Minute
	acquire(t, b, r)
	for _, key := range []string{r.Name, permits} {
		if ttl := c.PTTL(ctx, key).Val(); ttl < 25*time.Minute {
			t.Errorf("%s ends in %v, before our permit", key, ttl)
		}
	}
}

// The fields of readers that have ended go with the next reader that leaves, while others read.
func TestFieldsOfEndedReaders(t *testing.T) {
	b, c := redissonOf(t)
	long := request("", driver.Read)
	long.TTL = time.Hour
	acquire(t, b, long)
	var last driver.Request
	for range 300 {
		last = request(long.Name, driver.Read)
		last.TTL = 10 * time.Millisecond
		acquire(t, b, last)
	}
	eventually(t, "the readers end", func() bool { return c.Exists(t.Context(), layouts.ReaderKey(long.Name, last.Owner)).Val() == 0 })
	r := request(long.Name, driver.Read)
	acquire(t, b, r)
	release(t, b, r)
	if n := c.HLen(t.Context(), long.Name).Val(); n > 2 {
		t.Errorf("%d fields for one reader", n)
	}
	if err := b.Renew(t.Context(), []driver.Hold{long.Hold})[0]; err != nil {
		t.Error(err)
	}
	release(t, b, long)
}

// Kinds of locks under one name are never independent.
func TestKindsOnOneName(t *testing.T) {
	srv := testserver.SharedRedis(t)
	c := raw(t, srv.Addr())
	modes := []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted}
	for _, layout := range []Layout{String, Redisson} {
		b := openOwn(t, srv.Addr(), Options{Layout: layout})
		for _, first := range modes {
			for _, second := range modes {
				if first == driver.Counted && second == first || first == driver.Read && second == first {
					continue
				}
				r := request("", first)
				acquire(t, b, r)
				_, err := b.Acquire(t.Context(), request(r.Name, second))
				if !errors.Is(err, driver.ErrHeld) && (layout == String || !errors.Is(err, driver.ErrInvalid)) {
					t.Errorf("%s: %v beside %v: %v", layout, second, first, err)
				}
			}
		}
		want := map[Layout]error{String: driver.ErrHeld, Redisson: driver.ErrInvalid}[layout]
		for _, value := range []string{"1", "2", "x"} { // in the layout "string" another program's mutex
			for _, mode := range []driver.Mode{driver.Counted, driver.Read, driver.Write} {
				r := request("", mode)
				c.Set(t.Context(), r.Name, value, time.Minute)
				refused(t, b, r, want)
			}
		}
	}
}

// The layouts see each other's locks.
func TestLayoutsOnOneName(t *testing.T) {
	srv := testserver.SharedRedis(t)
	s, j := openOwn(t, srv.Addr(), Options{}), openOwn(t, srv.Addr(), Options{Layout: Redisson})
	a, b := request("", driver.Exclusive), request("", driver.Exclusive)
	acquire(t, s, a)
	refused(t, j, request(a.Name, driver.Exclusive), driver.ErrInvalid)
	acquire(t, j, b)
	refused(t, s, request(b.Name, driver.Exclusive), driver.ErrInvalid)
}

// The brace rule: names with a hash tag keep it.
func TestNamesWithBraces(t *testing.T) {
	b, c := redissonOf(t)
	r := request("", driver.Read)
	r.Name += "{tag}"
	acquire(t, b, r)
	expect(t, dump(t, c, r),
		"NAME hash OWNER:1=1 mode=read 30s",
		"NAME:OWNER:1:rwlock_timeout:1 string 1 30s",
		"NAME:OWNER:distlock string +OWNER  # 30s",
		"redisson_lock_token:NAME string # no TTL")
	release(t, b, r)
}

func TestRenewInBatches(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for _, layout := range []Layout{String, Redisson} {
		b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
		var holds []driver.Hold
		for i := range 2*batchSize + 7 {
			r := request("", []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted}[i%4])
			r.TTL = 10 * time.Minute
			if i%3 > 0 {
				acquire(t, b, r)
			}
			r.TTL = time.Hour
			holds = append(holds, r.Hold)
		}
		// One key of another type must not spoil its batch.
		c.Del(t.Context(), holds[4].Name)
		c.LPush(t.Context(), holds[4].Name, "x")
		for i, err := range b.Renew(t.Context(), holds) {
			lost := i%3 == 0 || i == 4
			if lost != errors.Is(err, driver.ErrLost) || !lost && err != nil {
				t.Fatalf("%s: hold %s of %v: %v", layout, strconv.Itoa(i), holds[i].Mode, err)
			}
			if ttl := c.PTTL(t.Context(), holds[i].Name).Val(); !lost && ttl > 0 && ttl < 40*time.Minute {
				t.Fatalf("%s: hold %d of %v ends in %v", layout, i, holds[i].Mode, ttl)
			}
		}
	}
}
