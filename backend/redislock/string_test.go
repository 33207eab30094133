package redislock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
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
	if want := uint64(ahead+1) * perMilli * fencesPerGrant; last < want || last > want+100*fencesPerGrant {
		t.Errorf("the last fence is %d, want a little more than %d", last, want)
	}
}

func TestFencesStayBelow63Bits(t *testing.T) {
	l := stringLayout(false)
	year2255 := time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	fence, err := l.fence(fmt.Sprint(year2255) + "-999")
	if err != nil || fence >= 1<<63-fencesPerGrant {
		t.Errorf("in the year 2255: fence %d, %v", fence, err)
	}
}

func TestFloorIsReversed(t *testing.T) {
	for _, l := range []*layout{stringLayout(false), redissonLayout()} {
		for _, floor := range []uint64{1, fencesPerGrant - 1, fencesPerGrant, 1795225002047293, 1795225002047293 * fencesPerGrant, 1<<63 - 1} {
			n, err := number64(l.floorID(floor))
			if err != nil || (n+1)*l.span <= floor && n < 1<<62 {
				t.Errorf("floor %d: counter %q, next fence %d: %v", floor, l.floorID(floor), (n+1)*l.span, err)
			}
		}
	}
}
