package sqlitelock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/engine"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

var refused = locktest.Held

// long is a TTL that doesn't end within a test.
const long = time.Hour

func lockFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "locks.db")
}

// connect opens path like another process.
func connect(t testing.TB, path string) *Backend {
	t.Helper()
	return connectWith(t, path, nil)
}

func connectWith(t testing.TB, path string, opt *Options) *Backend {
	t.Helper()
	b := must.Get(OpenFile(context.Background(), path, opt))(t)
	t.Cleanup(func() {
		expect.OK(t, b.Close())
	})
	return b
}

func request(name string, mode driver.Mode, ttl time.Duration) driver.Request {
	r := driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: ttl}, Fences: 1}
	if mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

func take(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Name, err)
	}
	return g
}

func free(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Fatalf("release %q: %v", r.Name, err)
	}
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	must.Be(t, err, target)
}

// The test binary is its own child process: with childEnv set it plays a role.
const childEnv = "SQLITELOCK_TEST_CHILD"

var roles = map[string]func(args []string) error{
	"count": countRole,
	"hold":  holdRole,
	"stuck": stuckRole,
	"open":  openRole,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a process that plays a role.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func spawn(t testing.TB, role string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(selfPath(t), args...)
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	out := must.Get(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{cmd: cmd, out: bufio.NewReader(out)}
}

func selfPath(t testing.TB) string {
	t.Helper()
	path := must.Get(os.Executable())(t)
	return path
}

// line returns the next line of the child's output.
func (c *child) line(t testing.TB) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child: %q, %v", s, err)
	}
	return strings.TrimSpace(s)
}

// kill ends the child with SIGKILL, and returns when it is gone.
func (c *child) kill(t testing.TB) {
	t.Helper()
	must.OK(t, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
}

// finish waits for the child to succeed.
func (c *child) finish(t testing.TB) {
	t.Helper()
	rest, _ := io.ReadAll(c.out)
	expect.OK(t, c.cmd.Wait(), "child", string(rest))
}

// countRole adds 1 to a number in a file, again and again, under a lock.
func countRole(args []string) error {
	ctx := context.Background()
	b, err := OpenFile(ctx, args[0], nil)
	if err != nil {
		return err
	}
	defer b.Close()
	turns, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	for range turns {
		r := request("counter", driver.Exclusive, time.Minute)
		g, err := poll(ctx, b, r)
		if err != nil {
			return err
		}
		if err := addOne(args[1], g.Fence); err != nil {
			return err
		}
		if err := b.Release(ctx, r.Hold); err != nil {
			return err
		}
	}
	return nil
}

// addOne expects "count fence" in the file, and the fence to be smaller than ours.
func addOne(path string, fence uint64) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var n int
	var last uint64
	if _, err := fmt.Sscan(string(text), &n, &last); err != nil {
		return err
	}
	if fence <= last {
		return fmt.Errorf("fence %d after %d", fence, last)
	}
	return os.WriteFile(path, fmt.Appendf(nil, "%d %d", n+1, fence), 0o600)
}

// poll retries until it gets the lock.
func poll(ctx context.Context, b *Backend, r driver.Request) (driver.Grant, error) {
	for {
		g, err := b.Acquire(ctx, r)
		if !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
		select {
		case <-ctx.Done():
			return g, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// holdRole takes a lock and prints its fence.
func holdRole(args []string) error {
	b, err := OpenFile(context.Background(), args[0], nil)
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	g, err := b.Acquire(context.Background(), request(args[1], driver.Exclusive, ttl))
	if err != nil {
		return err
	}
	fmt.Println(g.Fence)
	select {}
}

// stuckRole stops in the middle of a transaction that has taken a lock.
func stuckRole(args []string) error {
	b, err := OpenFile(context.Background(), args[0], nil)
	if err != nil {
		return err
	}
	return b.store.w.do(context.Background(), func(j *job) error {
		if _, err := j.swap(claimOf(args[1])); err != nil {
			return err
		}
		fmt.Println("stuck")
		select {}
	})
}

// claimOf adds a claim to a lock.
func claimOf(name string) engine.Change {
	return engine.Change{Name: name, New: "\nxowner h\t 0 9000000000000000 0  ", Until: 9e15}
}

// openRole opens a path and prints the error.
func openRole(args []string) error {
	_, err := OpenFile(context.Background(), args[0], nil)
	fmt.Printf("%t %v\n", errors.Is(err, driver.ErrInvalid), err)
	return nil
}

// turnRole takes and releases a lock.
func turnRole(args []string) error {
	ctx := context.Background()
	b, err := OpenFile(ctx, args[0], nil)
	if err != nil {
		return err
	}
	r := request(args[1], driver.Exclusive, long)
	if _, err := b.Acquire(ctx, r); err != nil {
		return err
	}
	return errors.Join(b.Release(ctx, r.Hold), b.Close())
}
