// Package redisson proves that distlock and Redisson share locks: Go processes and
// JVMs with the real Redisson take turns on every kind of them, in one real Redis.
package redisson

import (
	"context"
	"os"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

func TestMain(m *testing.M) {
	interop.RunChild(act)
	os.Exit(testserver.Run(m))
}

// act is a Go process that holds a lock of every kind, or that is queued for a fair one, until it
// is killed.
func act(url, role, name string) error {
	ctx := context.Background()
	waits := make(chan struct{}, 1)
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: shortLife, Observer: &distlock.Observer{Waiting: func(distlock.Event) { waits <- struct{}{} }}})
	if err != nil {
		return err
	}
	if role == "waits" {
		go fair.Lock(c, name).Lock(ctx)
		<-waits
		return nil
	}
	for _, m := range mortals {
		if _, err := m.held.Lock(c, m.name(name)).Lock(ctx); err != nil {
			return err
		}
	}
	return nil
}
