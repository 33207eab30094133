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
	"github.com/distlock/distlock/internal/testkit/peers"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/go-zookeeper/zk"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// lease is how long sessions live without a sign of life.
const lease = 30 * time.Second

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

func newLockSide(t *testing.T) peers.Side { return lockSide{connect(t)} }

// connect logs nothing.
func connect(t *testing.T) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect([]string{testserver.SharedZooKeeper(t).Addr()}, lease, zk.WithLogger(silent{}), zk.WithEventCallback(func(zk.Event) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// Lock knows no context.
func (s lockSide) Lock(_ context.Context, name string) (peers.Held, error) {
	l := zk.NewLock(s.Conn, "/"+name, zk.WorldACL(zk.PermAll))
	return lockHeld{l}, l.Lock()
}

type lockHeld struct{ *zk.Lock }

func (h lockHeld) Unlock(context.Context) error { return h.Lock.Unlock() }
func (h lockHeld) Fence() uint64                { return 0 } // it has none

// line are the nodes of those who hold a lock or wait for it, in no order.
func line(t *testing.T, c *zk.Conn, name string) []string {
	t.Helper()
	nodes, _, err := c.Children("/" + name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return nodes
}

// inLine waits until so many hold the lock or wait for it, and returns their nodes.
func inLine(t *testing.T, c *zk.Conn, name string, n int) []string {
	t.Helper()
	var nodes []string
	peers.Eventually(t, "the line has not the length that it should have", func() bool {
		nodes = line(t, c, name)
		return len(nodes) == n
	})
	return nodes
}
