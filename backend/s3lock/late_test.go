package s3lock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A lease outlives a restart of the server that is shorter than its TTL.
func TestLongServerIsKilled(t *testing.T) {
	srv := testserver.S3(t, testserver.S3Options{})
	locks := must.Get(distlock.Open(t.Context(), urlOf(srv.Endpoint()), locktest.Patient()))(t)
	lease := must.Get(locks.Mutex("job").Lock(t.Context()))(t)
	srv.Kill()
	if err := lease.Extend(t.Context(), 10*time.Minute); err == nil {
		t.Error("extended at a server that is dead")
	}
	srv.Start()
	expect.OK(t, lease.Extend(locktest.Soon(t), 10*time.Minute))
	expect.OK(t, lease.Unlock(t.Context()))
	expect.OK(t, locks.Close())
}

// A write that arrives after its sender gave up, and after the lock was released, takes nothing.
func TestLongLateCalls(t *testing.T) {
	srv := testserver.SharedS3(t)
	proxy := faultproxy.New(t, srv.Addr())
	late, other := connect(t, urlOf("http://"+proxy.Addr())), connect(t, urlOf(srv.Endpoint()))
	first := request("late")
	locktest.Acquire(t, other, first)
	locktest.Release(t, other, first)
	for range 5 {
		r := request("late")
		proxy.HoldBack("PUT ", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := late.Acquire(ctx, r); err == nil || driver.Final(err) {
			t.Fatalf("a write that is held back: %v", err)
		}
		cancel()
		expect.Be(t, late.Release(t.Context(), r.Hold), driver.ErrLost)
		proxy.Deliver()
		locktest.Eventually(t, "the late write arrives", func() bool { return proxy.Held() == 0 })
		next := request("late")
		locktest.Acquire(t, other, next)
		expect.Be(t, late.Release(t.Context(), r.Hold), driver.ErrLost)
		locktest.Release(t, other, next)
	}
}

// Processes whose clocks are two hours apart exclude each other at a server that checks the times of signatures.
func TestLongClocksApart(t *testing.T) {
	u := must.Get(driver.ParseURL(urlOf(testserver.SharedS3(t).Endpoint())))(t)
	var apart []*store
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		s := must.Get(openStore(t.Context(), u))(t)
		t.Cleanup(func() { expect.OK(t, s.Close()) })
		s.skew.Store(int64(wrong)) // as if the clock had been set in this moment
		apart = append(apart, s)
	}
	ahead, behind := apart[0].backend(), apart[1].backend()
	r := request("clocks")
	locktest.Acquire(t, ahead, r)
	locktest.Held(t, behind, request("clocks"))
	locktest.Release(t, ahead, r)
	r = request("clocks")
	locktest.Acquire(t, behind, r)
	locktest.Release(t, behind, r)
}
