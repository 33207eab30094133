// Package zk tests that distlock shares a lock with go-zookeeper's zk.Lock. It reproduces the bugs of zk.Lock
// beside distlock, which doesn't have them.
package zk

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	_ "github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
	"github.com/go-zookeeper/zk"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// sessionTimeout outlasts the tests.
const sessionTimeout = 30 * time.Second

func newName() string { return "test-" + rand.Text() }

func newDistlock(t *testing.T) peers.Distlock {
	t.Helper()
	b, err := driver.Open(t.Context(), testserver.SharedZooKeeper(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	return peers.NewDistlock(t, b, nil)
}

// lockSide is zk.Lock on a session of its own.
type lockSide struct{ *zk.Conn }

func newLockSide(t *testing.T) peers.Peer { return lockSide{connect(t)} }

// connect opens a session without a log.
func connect(t *testing.T) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect([]string{testserver.SharedZooKeeper(t).Addr()}, sessionTimeout, zk.WithLogger(silent{}), zk.WithEventCallback(func(zk.Event) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// Lock ignores the context: zk.Lock takes none.
func (s lockSide) Lock(_ context.Context, name string) (peers.Held, error) {
	l := zk.NewLock(s.Conn, "/"+name, zk.WorldACL(zk.PermAll))
	return lockHeld{l}, l.Lock()
}

type lockHeld struct{ *zk.Lock }

func (h lockHeld) Unlock(context.Context) error { return h.Lock.Unlock() }

func (h lockHeld) Fence() uint64 { return 0 } // it has none

// lockNodes returns the nodes of a lock's holders and waiters, in no order.
func lockNodes(t *testing.T, c *zk.Conn, name string) []string {
	t.Helper()
	nodes, _, err := c.Children("/" + name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return nodes
}

// awaitNodes waits until a lock has n nodes, and returns them.
func awaitNodes(t *testing.T, c *zk.Conn, name string, n int) []string {
	t.Helper()
	var nodes []string
	peers.Eventually(t, "the queue does not reach the expected length", func() bool {
		nodes = lockNodes(t, c, name)
		return len(nodes) == n
	})
	return nodes
}
