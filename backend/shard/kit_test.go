package shard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/shard"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftBehind(); left != "" && code == 0 {
		fmt.Println("goroutines left behind:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// leftBehind waits for goroutines to end, and returns the remaining ones.
func leftBehind() string {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		var left []string
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "distlock/backend") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return strings.Join(left, "\n\n")
		}
	}
}

var errDown = errors.New("connection refused")

// cluster has some stores and the connections to them.
type cluster struct {
	t      testing.TB
	stores map[string]*memlock.Store
}

func newCluster(t testing.TB, names ...string) *cluster {
	c := &cluster{t: t, stores: map[string]*memlock.Store{}}
	for _, name := range names {
		c.stores[name] = memlock.NewStore()
	}
	return c
}

// wire is one process's connection to one member.
type wire struct {
	*memlock.Backend
	mu    sync.Mutex
	down  bool  // calls fail
	hangs bool  // calls have no answer
	gone  error // returned by calls, which are not sent; nil: they are sent
}

func (w *wire) set(down, hangs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.hangs = down, hangs
}

// refuse makes all calls fail unsent.
func (w *wire) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = driver.Unsent(errDown)
}

func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	down, hangs, gone := w.down, w.hangs, w.gone
	w.mu.Unlock()
	switch {
	case gone != nil:
		return gone
	case down:
		return errDown
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (w *wire) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := w.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	return w.Backend.Acquire(ctx, r)
}

func (w *wire) Renew(ctx context.Context, holds []driver.Hold) []error {
	if err := w.pass(ctx); err != nil {
		return slices.Repeat([]error{err}, len(holds))
	}
	return w.Backend.Renew(ctx, holds)
}

func (w *wire) Release(ctx context.Context, h driver.Hold) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	return w.Backend.Release(ctx, h)
}

// process is a backend with its own connections.
type process struct {
	*shard.Backend
	wires map[string]*wire
}

// process makes a process with a list of members, such as "a b c".
func (c *cluster) process(list string) *process {
	c.t.Helper()
	p := &process{wires: map[string]*wire{}}
	var members []shard.Member
	for _, name := range strings.Fields(list) {
		p.wires[name] = &wire{Backend: c.stores[name].Connect()}
		members = append(members, shard.Member{Name: name, Backend: p.wires[name]})
	}
	var err error
	if p.Backend, err = shard.New(members); err != nil {
		c.t.Fatalf("%s: %v", list, err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

func request(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 30 * time.Second},
		Fences: 1,
	}
}

// at returns a name that a list's hashing gives to a member.
func at(t testing.TB, member string, list ...string) string {
	o := must.Get(shard.NewRouter("", list...))(t)
	for i := 0; ; i++ {
		if name := fmt.Sprintf("name%d", i); o.Of(name) == member {
			return name
		}
	}
}

func take(t testing.TB, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	must.OK(t, err, r.Name)
	return g
}
