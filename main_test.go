package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
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

// leftBehind waits for the goroutines of the tests to end, and returns the remaining ones.
func leftBehind() string {
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		buf := make([]byte, 1<<20)
		left = left[:0]
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "distlock") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// The core, package driver, the suite and the combinators import no other module. Neither do their
// tests.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	const module = "github.com/distlock/distlock"
	packages := []string{".", "./driver", "./drivertest", "./backend/memlock", "./backend/quorum", "./backend/shard"}
	args := append([]string{"list", "-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, packages...)
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	must.OK(t, err, "go list")
	names := strings.Fields(string(out))
	if len(names) < len(packages) {
		t.Fatalf("go list names %v", names)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, module) && !strings.HasPrefix(name, "[") {
			t.Errorf("%s is neither of the standard library nor of %s", name, module)
		}
	}
}

var errNetwork = errors.New("connection reset")

// rig is a backend in memory whose calls can be counted, delayed and lost.
type rig struct {
	*memlock.Backend
	acquires, renews, releases, closes atomic.Int64

	mu      sync.Mutex
	acquire func(ctx context.Context, r driver.Request, next acquirer) (driver.Grant, error)
	renew   func(ctx context.Context, holds []driver.Hold, next renewer) []error
	release func(ctx context.Context, h driver.Hold, next releaser) error
	caps    func(driver.Caps) driver.Caps
	noWatch bool
}

type (
	acquirer = func(context.Context, driver.Request) (driver.Grant, error)
	renewer  = func(context.Context, []driver.Hold) []error
	releaser = func(context.Context, driver.Hold) error
)

// newRig makes a rig without a queue, so that grants carry spans of
// fences. A rig without caps of its own has a queue on request.
func newRig() *rig { return &rig{Backend: memlock.New(), caps: withoutQueue} }

func withoutQueue(caps driver.Caps) driver.Caps {
	caps.Queueing = driver.QueueNever
	return caps
}

// set changes the rig's hooks while it is in use.
func (r *rig) set(f func(*rig)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func (r *rig) Caps() driver.Caps {
	caps := r.Backend.Caps()
	if r.caps != nil {
		caps = r.caps(caps)
	}
	return caps
}

func (r *rig) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	r.acquires.Add(1)
	r.mu.Lock()
	hook := r.acquire
	r.mu.Unlock()
	if hook != nil {
		return hook(ctx, req, r.Backend.Acquire)
	}
	return r.Backend.Acquire(ctx, req)
}

func (r *rig) Renew(ctx context.Context, holds []driver.Hold) []error {
	r.renews.Add(1)
	r.mu.Lock()
	hook := r.renew
	r.mu.Unlock()
	if hook != nil {
		return hook(ctx, holds, r.Backend.Renew)
	}
	return r.Backend.Renew(ctx, holds)
}

func (r *rig) Release(ctx context.Context, h driver.Hold) error {
	r.releases.Add(1)
	r.mu.Lock()
	hook := r.release
	r.mu.Unlock()
	if hook != nil {
		return hook(ctx, h, r.Backend.Release)
	}
	return r.Backend.Release(ctx, h)
}

func (r *rig) Watch(ctx context.Context, req driver.Request) (driver.Watch, error) {
	if r.noWatch {
		return driver.Watch{}, driver.ErrSkip
	}
	return r.Backend.Watch(ctx, req)
}

func (r *rig) Close() error {
	r.closes.Add(1)
	return r.Backend.Close()
}

// blackHole is a renewal that gets no answer.
func blackHole(ctx context.Context, holds []driver.Hold, _ renewer) []error {
	<-ctx.Done()
	return allErrors(holds, ctx.Err())
}

func allErrors(holds []driver.Hold, err error) []error {
	errs := make([]error, len(holds))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// client makes a client that is closed when the test ends.
func client(t testing.TB, b driver.Backend, opts *distlock.Options) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(b, opts))(t)
	t.Cleanup(func() {
		expect.OK(t, c.Close(), "Close")
	})
	return c
}

func mustLock(t testing.TB, m interface {
	Lock(context.Context) (*distlock.Lease, error)
}) *distlock.Lease {
	t.Helper()
	lease := must.Get(m.Lock(t.Context()))(t)
	return lease
}

func mustUnlock(t testing.TB, lease interface {
	Unlock(context.Context) error
}) {
	t.Helper()
	expect.OK(t, lease.Unlock(t.Context()), "Unlock")
}

// within fails unless got is want, or later by at most slack.
func within(t testing.TB, what string, got, want, slack time.Duration) {
	t.Helper()
	if got < want || got > want+slack {
		t.Errorf("%s after %v, want %v to %v", what, got, want, want+slack)
	}
}

// free fails if anything is left of the lock at the backend.
func free(t testing.TB, c *distlock.Client, name string) {
	t.Helper()
	info := must.Get(c.Inspect(context.Background(), name))(t)
	if len(info.Holders) != 0 || len(info.Waiters) != 0 {
		t.Errorf("%s is not free: %+v", name, info)
	}
}
