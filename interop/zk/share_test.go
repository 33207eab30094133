// Package zk tests that distlock shares a lock with go-zookeeper's zk.Lock. It reproduces the bugs of zk.Lock
// beside distlock, which doesn't have them.
package zk

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/zklock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
)

// Two clients of distlock and two of zk.Lock take turns on one lock.
func TestTurns(t *testing.T) {
	name := newName()
	peers.Turns(t, name, 250, map[string][]peers.Peer{
		"distlock": {newDistlock(t), newDistlock(t)}, "zk.Lock": {newLockSide(t), newLockSide(t)},
	})
	if left := lockNodes(t, connect(t), name); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A waiter on one side is woken by a release on the other.
func TestWakeUps(t *testing.T) {
	c, us, them := connect(t), newDistlock(t), newLockSide(t)
	queued := func(name string) { awaitNodes(t, c, name, 2) }
	peers.WakeUps(t, 60, us, them, newName, queued)
	peers.WakeUps(t, 60, them, us, newName, queued)
}

// Bugs of zk.Lock, reproduced with it, and absent from distlock in the same place.

// A waiter of zk.Lock never checks its own node. When that is gone, it still takes the lock in its
// turn. So does the next waiter, which has a node.
func TestWaiterWithoutItsNode(t *testing.T) {
	c := connect(t)
	t.Run("zk.Lock", func(t *testing.T) {
		name := newName()
		h := peers.Take(t, newLockSide(t), name)
		w := startWaiterWithoutNode(t, c, newLockSide(t), name)
		awaitNodes(t, c, name, 1)
		peers.Give(t, h)
		w.Granted(t)
		if nodes := lockNodes(t, c, name); len(nodes) != 0 {
			t.Fatalf("the waiter has the lock by %q: has it been fixed?", nodes)
		}
		peers.Give(t, peers.Take(t, newLockSide(t), name))
		t.Log("two held the lock at once")
	})
	for kind, open := range map[string]func(*testing.T) peers.Peer{
		"distlock beside zk.Lock": newLockSide, "distlock": func(t *testing.T) peers.Peer { return newDistlock(t) },
	} {
		t.Run(kind, func(t *testing.T) {
			name, third := newName(), newDistlock(t)
			h := peers.Take(t, open(t), name)
			w := startWaiterWithoutNode(t, c, newDistlock(t), name)
			awaitNodes(t, c, name, 2) // it has another one
			w.Waits(t)
			peers.Give(t, h)
			g := w.Granted(t)
			if nodes := lockNodes(t, c, name); len(nodes) != 1 {
				t.Errorf("the waiter has the lock by %q", nodes)
			}
			if other, err := third.Try(t.Context(), name); other != nil || err != nil {
				t.Errorf("two hold the lock at once: %v, %v", other, err)
			}
			peers.Give(t, g)
			peers.Give(t, peers.Take(t, third, name))
		})
	}
}

// startWaiterWithoutNode starts a waiter for a lock that is held, and deletes its node.
func startWaiterWithoutNode(t *testing.T, c *zk.Conn, s peers.Peer, name string) peers.Waiter {
	t.Helper()
	holder := awaitNodes(t, c, name, 1)[0]
	w := peers.StartWaiter(t, s, name)
	nodes := awaitNodes(t, c, name, 2)
	i := slices.IndexFunc(nodes, func(n string) bool { return n != holder })
	must.OK(t, c.Delete("/"+name+"/"+nodes[i], -1))
	return w
}

// A child of the lock's node that is no lock makes zk.Lock fail and leave its own node behind. All
// others wait for that node for as long as the session lives.
func TestForeignChild(t *testing.T) {
	c := connect(t)
	for kind, open := range map[string]func(*testing.T) peers.Peer{
		"zk.Lock": newLockSide, "distlock": func(t *testing.T) peers.Peer { return newDistlock(t) },
	} {
		name := newName()
		for _, path := range []string{"/" + name, "/" + name + "/config"} {
			must.Get(c.Create(path, nil, 0, zk.WorldACL(zk.PermAll)))(t)
		}
		h, err := open(t).Lock(t.Context(), name)
		ours := kind == "distlock"
		if ours != (err == nil) {
			t.Errorf("%s beside a foreign child: %v", kind, err)
		}
		if nodes := lockNodes(t, c, name); len(nodes) != 2 {
			t.Errorf("%s leaves %q", kind, nodes)
		}
		if ours {
			peers.Give(t, h)
		}
	}
}

// Goroutines that share a session exclude each other.
func TestManyOnOneSession(t *testing.T) {
	us := newDistlock(t)
	for kind, s := range map[string]peers.Peer{
		"zk.Lock": newLockSide(t), "distlock": us, "distlock without hand-off": us.With(distlock.WithoutHandoff()),
	} {
		expect.Equal(t, peers.Crowd(t, s, newName()), 1, kind, "inside at once")
	}
}

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

// sessionTimeout outlasts the tests.
const sessionTimeout = 30 * time.Second

func newName() string { return "test-" + rand.Text() }

func newDistlock(t *testing.T) peers.Distlock {
	t.Helper()
	b := must.Get(driver.Open(t.Context(), testserver.SharedZooKeeper(t).URL()))(t)
	return peers.NewDistlock(t, b, nil)
}

// lockSide is zk.Lock on a session of its own.
type lockSide struct{ *zk.Conn }

func newLockSide(t *testing.T) peers.Peer { return lockSide{connect(t)} }

// connect opens a session without a log.
func connect(t *testing.T) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect([]string{testserver.SharedZooKeeper(t).Addr()}, sessionTimeout, zk.WithLogger(silent{}), zk.WithEventCallback(func(zk.Event) {}))
	must.OK(t, err)
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
