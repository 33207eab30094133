package locktest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// Stalling is a server that can be stopped.
type Stalling interface {
	Pause()
	Resume()
}

// StalledServer wants calls to return when their contexts end. Their commands run later, and a release that is sent
// afterwards runs after them.
func StalledServer(t *testing.T, b driver.Backend, srv Stalling, request func() driver.Request) {
	for _, end := range []string{"deadline", "cancel"} {
		r := request()
		srv.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if end == "cancel" {
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
		}
		if _, err := b.Acquire(ctx, r); !errors.Is(err, ctx.Err()) {
			t.Errorf("acquire: %v, want %v", err, ctx.Err())
		}
		cancel()
		released := make(chan error)
		go func() { released <- b.Release(t.Context(), r.Hold) }()
		srv.Resume()
		if err := <-released; err != nil {
			t.Errorf("release of a lock that was acquired late: %v", err)
		}
		r.Owner = driver.NewOwner()
		Acquire(t, b, r)
	}
}

// StalledServerAndOthers lets some callers give up. The others on the same connection must get their answers all the same.
func StalledServerAndOthers(t *testing.T, b driver.Backend, srv Stalling, request func() driver.Request) {
	srv.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	var gaveUp, waited sync.WaitGroup
	for range 10 {
		gaveUp.Go(func() {
			if _, err := b.Acquire(ctx, request()); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
		waited.Go(func() {
			if _, err := b.Acquire(t.Context(), request()); err != nil {
				t.Errorf("waiting: %v", err)
			}
		})
	}
	time.AfterFunc(30*time.Millisecond, cancel)
	gaveUp.Wait()
	srv.Resume()
	waited.Wait()
}
