package redislock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A caller that gives up on a frozen server returns at once, and cuts neither a subscription nor
// anything but its own command, whatever connections were made before.
func TestGivingUpWhileOthersWatch(t *testing.T) {
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { warm(t, b, driver.Exclusive) })
	}
	wg.Wait()
	w := armWatch(t, b, request("x", driver.Exclusive))
	defer w.Close()
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Acquire(ctx, request("", driver.Exclusive)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v", err)
	}
	srv.Resume()
	acquire(t, b, request("", driver.Exclusive))
	select {
	case <-w.Ready:
		t.Error("the subscription was cut")
	default:
	}
}

// A release is not executed before the acquire that was given up, however late that
// comes: else a lock would be left without a holder.
func TestAbandonedAcquireLandsBeforeItsRelease(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		p := faultproxy.New(t, srv.Addr())
		b := o.open(t, p.Addr(), Options{})
		warm(t, b, driver.Exclusive)
		r, err := request("", driver.Exclusive), error(nil)
		for delay := 300 * time.Millisecond; err == nil; delay *= 2 { // again if this process was as slow
			p.Delay(delay)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_, err = b.Acquire(ctx, r)
			cancel()
		}
		unknown(t, "acquire", err)
		p.Delay(0)
		release(t, b, r)
		if v := raw(t, srv.Addr()).Exists(t.Context(), r.Name).Val(); v != 0 {
			t.Error("the lock is held by an owner that was released")
		}
	})
}

func TestCloseWhileTheServerIsFrozen(t *testing.T) {
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	warm(t, b, driver.Exclusive)
	srv.Pause()
	defer srv.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Watch(ctx, request("", driver.Exclusive)); err == nil {
		t.Error("a frozen server armed a watch")
	}
	b.Close()
}
