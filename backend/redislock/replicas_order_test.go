package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// An acquire that was given up on its way lands before its release, and not after it.
func TestReplicasOfAnAbandonedAcquire(t *testing.T) {
	eachOpener(t, func(t *testing.T, o opener) {
		master, _ := replicated(t)
		b, r := o.open(t, master.Addr(), patient(String)), request("", driver.Exclusive)
		warm(t, b, driver.Exclusive)
		under, on := make(chan struct{}), make(chan struct{})
		meddle(b, func([][]string) {
			close(under)
			<-on
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-under; cancel() }()
		_, err := b.Acquire(ctx, r)
		unknown(t, "acquire", err)
		released := make(chan error, 1)
		go func() { released <- b.Release(t.Context(), r.Hold) }()
		select {
		case err := <-released:
			t.Errorf("the release has overtaken the acquire: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(on)
		if err := <-released; err != nil {
			t.Errorf("release: %v", err)
		}
	})
}
