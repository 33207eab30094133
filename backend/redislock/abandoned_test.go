package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A release goes out at once, whatever an abandoned attempt of its Owner still waits for.
func TestReleaseDoesNotWaitForAnAbandonedAttempt(t *testing.T) {
	eachHalfOpen(t, func(t *testing.T, b *Backend, p *faultproxy.Proxy) {
		strand(p)
		r := request("", driver.Exclusive)
		unknown(t, "acquire", givenUp(t, b, r, 200*time.Millisecond))
		within(t, "acquire", func(ctx context.Context) error {
			_, err := b.Acquire(ctx, r)
			return err
		})
		within(t, "release", func(ctx context.Context) error { return b.Release(ctx, r.Hold) })
		within(t, "another's acquire", func(ctx context.Context) error {
			_, err := b.Acquire(ctx, request(r.Name, driver.Exclusive))
			return err
		})
		p.Pass() // the connection ends, and with it what Close waits for
	})
}

// An attempt that arrives after the release of a later one of its Owner is released too, also by a client that is closed.
func TestLateAcquireIsReleased(t *testing.T) {
	srv := testserver.SharedRedis(t)
	eachOpener(t, func(t *testing.T, o opener) {
		for _, closed := range []bool{false, true} {
			p := faultproxy.New(t, srv.Addr())
			b := o.open(t, p.Addr(), Options{})
			warm(t, b, driver.Exclusive)
			r := request("", driver.Exclusive)
			r.TTL = time.Hour
			const late = 2 * time.Second
			p.Delay(late)
			unknown(t, "acquire", givenUp(t, b, r, 300*time.Millisecond))
			p.Delay(0)
			within(t, "acquire", func(ctx context.Context) error {
				_, err := b.Acquire(ctx, r)
				return err
			})
			release(t, b, r)
			if closed {
				b.Close()
			} else {
				time.Sleep(late)
			}
			c := raw(t, srv.Addr())
			eventually(t, "it is released", func() bool { return c.Exists(t.Context(), r.Name).Val() == 0 })
		}
	})
}
