package zklock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

var (
	acquire    = locktest.Acquire
	release    = locktest.Release
	refused    = locktest.Refused
	eventually = locktest.Eventually
)

// patience bounds how long tests wait, for a loaded machine.
const patience = 2 * time.Minute

// patiently gives a URL's Open the time that a loaded machine needs.
func patiently(url string) string {
	if strings.Contains(url, "?") {
		return url + "&timeout=2m"
	}
	return url + "?timeout=2m"
}

func open(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), patiently(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// pair opens two backends of one server.
func pair(t testing.TB) (a, b *Backend) {
	t.Helper()
	url := testserver.SharedZooKeeper(t).URL()
	return open(t, url), open(t, url)
}

// dial opens a session of another program.
func dial(t testing.TB, addr string, timeout time.Duration) *zk.Conn {
	t.Helper()
	c, err := zk.Dial(t.Context(), zk.Config{Servers: []string{addr}, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

func admin(t testing.TB) *zk.Conn {
	t.Helper()
	return dial(t, testserver.SharedZooKeeper(t).Addr(), 20*time.Second)
}

// request makes a queueing request of a new Owner. Without a name it gets a new one.
func request(name string, mode driver.Mode) driver.Request {
	if name == "" {
		name = "test " + driver.NewOwner()
	}
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: 2 * time.Minute},
		Fences: 1, Limit: 2, Queue: true,
	}
}

func signalled(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
	}
}

// nodes lists the lock nodes below a path.
func nodes(t testing.TB, c *zk.Conn, path string) nodeList {
	t.Helper()
	children, _, err := c.SyncAndList(t.Context(), path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return readListing(children).nodes
}

// remove deletes a node, as an operator would.
func remove(t testing.TB, c *zk.Conn, path string) {
	t.Helper()
	if err := c.Delete(t.Context(), path, -1); err != nil {
		t.Fatal(err)
	}
}

// makeNode makes a node and its parents, as another program would.
func makeNode(t testing.TB, c *zk.Conn, path, data string, mode zk.Mode) string {
	t.Helper()
	for {
		made, _, err := c.Create(t.Context(), path, []byte(data), mode)
		if !errors.Is(err, zk.ErrNoNode) {
			if err != nil && !errors.Is(err, zk.ErrNodeExists) {
				t.Fatal(err)
			}
			return made
		}
		makeNode(t, c, path[:len(path)-len(nodeName(path))-1], "", zk.Container)
	}
}

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }
