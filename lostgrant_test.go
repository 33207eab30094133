package distlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
)

// A grant that is lost again and again before it can be returned costs few attempts, and no longer than the caller wants.
func TestGrantsThatAreLostAtOnce(t *testing.T) {
	const limit, most = time.Minute, 200
	for what, test := range map[string]struct {
		opts  []distlock.LockOption
		grant func(context.Context, *rig, driver.Request) (driver.Grant, error)
	}{
		"the backend says so": {nil, func(ctx context.Context, r *rig, req driver.Request) (driver.Grant, error) {
			grant, err := r.Backend.Acquire(ctx, req)
			if err == nil {
				err = r.Backend.Release(ctx, req.Hold)
				req.OnLost()
			}
			return grant, err
		}},
		"an answer that takes longer than MaxHold": {[]distlock.LockOption{distlock.MaxHold(time.Millisecond)}, func(ctx context.Context, r *rig, req driver.Request) (driver.Grant, error) {
			time.Sleep(2 * time.Millisecond)
			return r.Backend.Acquire(ctx, req)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				c := client(t, r, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r.acquire = func(ctx context.Context, req driver.Request, _ acquirer) (driver.Grant, error) {
					if r.acquires.Load() > most {
						cancel()
					}
					return test.grant(ctx, r, req)
				}
				start := time.Now()
				_, err := c.Mutex("x", append(test.opts, distlock.WaitAtMost(limit))...).Lock(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > limit+time.Second {
					t.Errorf("Lock: %v, after %v and %d attempts", err, time.Since(start), r.acquires.Load())
				}
				time.Sleep(time.Second)
				free(t, c, "x")
			})
		})
	}
}
