package zk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	code := testserver.Run(m)
	if left := leftBehind(); left != "" && code == 0 {
		fmt.Println("goroutines left behind:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// leftBehind waits for the goroutines of sessions to end, and returns those that don't.
func leftBehind() string {
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		buf := make([]byte, 1<<20)
		left = left[:0]
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "internal/zk.") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// patience is how long a test waits for what has to come.
const patience = 2 * time.Minute

// soon is a context for what has to come.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a session that ends with the test.
func dial(t testing.TB, cfg Config) *Conn {
	t.Helper()
	c, err := Dial(soon(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(soon(t)) })
	return c
}

const long = time.Minute // a timeout that no test sees the end of

// at is a session with servers.
func at(t testing.TB, addrs ...string) *Conn {
	t.Helper()
	return dial(t, Config{Servers: addrs, Timeout: long})
}

// shared is a session with the server of all tests.
func shared(t testing.TB) *Conn {
	t.Helper()
	return at(t, testserver.SharedZooKeeper(t).Addr())
}

// place makes a node of the test's own.
func place(t testing.TB, c *Conn) string {
	t.Helper()
	path := fmt.Sprintf("/%s-%08x", strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()), rand.Uint32())
	if _, _, err := c.Create(soon(t), path, nil, Container); err != nil {
		t.Fatal(err)
	}
	return path
}

// node makes one that ends with the session. On a busy machine a server may be silent for
// longer than a short session waits for it.
func node(t testing.TB, c *Conn, path string) {
	t.Helper()
	_, _, err := c.Create(soon(t), path, nil, Ephemeral)
	for errors.Is(err, ErrConnectionLoss) {
		_, _, err = c.Create(soon(t), path, nil, Ephemeral)
	}
	if err != nil && !errors.Is(err, ErrNodeExists) {
		t.Fatal(err)
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("not after %v: %s", patience, what)
	}
	return v
}
