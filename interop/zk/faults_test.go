package zk

import (
	"slices"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/interop/peers"
	"github.com/go-zookeeper/zk"
)

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
	if err := c.Delete("/"+name+"/"+nodes[i], -1); err != nil {
		t.Fatal(err)
	}
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
			if _, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
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
		if most := peers.Crowd(t, s, newName()); most != 1 {
			t.Errorf("%s: %d inside at once", kind, most)
		}
	}
}
