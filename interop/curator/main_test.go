// Package curator proves that distlock and Apache Curator share locks: Go processes and
// JVMs with the real Curator take turns on every kind of them, in one real ZooKeeper.
package curator

import (
	"context"
	"os"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
)

func TestMain(m *testing.M) {
	interop.RunChild(holdAll)
	os.Exit(testserver.Run(m))
}

// holdAll is a Go process that holds a lock of every kind until it is killed.
func holdAll(url, _, name string) error {
	ctx := context.Background()
	c, err := distlock.Open(ctx, url, &distlock.Options{TTL: shortLife})
	if err != nil {
		return err
	}
	for _, m := range mortals {
		if _, err := m.held.Lock(c, m.name(name)).Lock(ctx); err != nil {
			return err
		}
	}
	return nil
}
