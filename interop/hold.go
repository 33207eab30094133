package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
)

// Patience bounds a call that isn't meant to wait.
const Patience = 3 * time.Minute

// Prompt bounds the time in which a waiter is woken. Locks end much later by themselves.
const Prompt = time.Minute

// Eventually waits until ok returns true.
func Eventually(t *testing.T, otherwise func() string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise())
		}
	}
}

// Await receives from a channel.
func Await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		t.Fatalf("%v passed without %s", Patience, what)
	}
	return v
}

var names atomic.Int64

// NewName returns a name that no other test uses.
func NewName(t *testing.T) string {
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), names.Add(1))
}

// Client opens a client of the backend at a URL, with connections of its own.
func Client(t *testing.T, url string, opts *distlock.Options) *distlock.Client {
	t.Helper()
	c, err := distlock.Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Locker is a lock of any kind.
type Locker struct {
	Lock, Try func(context.Context) (Hold, error)
}

// Hold is a Lease or a MultiLease.
type Hold interface {
	Unlock(context.Context) error
	Err() error
	Context() context.Context
}

// Fence returns the fence of a hold; 0 if it has none.
func Fence(h Hold) uint64 {
	if l, ok := h.(interface{ Fence() uint64 }); ok {
		return l.Fence()
	}
	return 0
}

// heldBy makes a Hold of a lock's results.
func heldBy[L Hold](l L, err error) (Hold, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

func lockerOf[L Hold](lock, try func(context.Context) (L, error)) Locker {
	return Locker{
		Lock: func(ctx context.Context) (Hold, error) { return heldBy(lock(ctx)) },
		Try:  func(ctx context.Context) (Hold, error) { return heldBy(try(ctx)) },
	}
}

// Mutex returns a mutex.
func Mutex(c *distlock.Client, name string) Locker {
	m := c.Mutex(name)
	return lockerOf(m.Lock, m.TryLock)
}

// Queue returns a fair mutex.
func Queue(c *distlock.Client, name string) Locker {
	m := c.Mutex(name, distlock.Fair())
	return lockerOf(m.Lock, m.TryLock)
}

// Writer returns the write lock of a read/write lock.
func Writer(c *distlock.Client, name string) Locker {
	m := c.RWMutex(name)
	return lockerOf(m.Lock, m.TryLock)
}

// Reader returns the read lock of a read/write lock.
func Reader(c *distlock.Client, name string) Locker {
	m := c.RWMutex(name)
	return lockerOf(m.RLock, m.TryRLock)
}

// Permit returns a semaphore with a number of permits.
func Permit(limit int) func(c *distlock.Client, name string) Locker {
	return func(c *distlock.Client, name string) Locker {
		s := c.Semaphore(name, limit)
		return lockerOf(s.Acquire, s.TryAcquire)
	}
}

// Several returns a multi-lock of the mutexes in a name with commas.
func Several(c *distlock.Client, name string) Locker {
	var all []distlock.Locker
	for part := range strings.SplitSeq(name, ",") {
		all = append(all, c.Mutex(part))
	}
	m := distlock.Multi(all...)
	return lockerOf(m.Lock, m.TryLock)
}

// Take waits for a lock.
func Take(t *testing.T, l Locker) Hold {
	t.Helper()
	return Wait(t, l).Granted(t).Hold
}

// Give releases a hold that was not lost.
func Give(t *testing.T, h Hold) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// IsHeld expects that the lock is held.
func IsHeld(t *testing.T, l Locker) {
	t.Helper()
	if h, err := l.Try(t.Context()); !errors.Is(err, distlock.ErrHeld) {
		t.Errorf("taken with %v, %v; want ErrHeld", h, err)
	}
}

// Grant is the result of a wait.
type Grant struct {
	Hold
	At  time.Time
	err error
}

// Waiter waits for a lock on the Go side.
type Waiter chan Grant

// Wait starts a goroutine that waits for a lock.
func Wait(t *testing.T, l Locker) Waiter {
	w := make(Waiter, 1)
	go func() { w <- lock(t, l) }()
	return w
}

// Pass starts a goroutine that waits for a lock and releases it at once.
func Pass(t *testing.T, l Locker) Waiter {
	w := make(Waiter, 1)
	go func() {
		g := lock(t, l)
		if g.err == nil {
			g.err = g.Unlock(t.Context())
		}
		w <- g
	}()
	return w
}

func lock(t *testing.T, l Locker) Grant {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	h, err := l.Lock(ctx)
	return Grant{h, time.Now(), err}
}

// Granted waits until the waiter has the lock.
func (w Waiter) Granted(t *testing.T) Grant {
	t.Helper()
	g := <-w
	if g.err != nil {
		t.Fatal(g.err)
	}
	return g
}

// Since returns the rounded time since start.
func Since(start time.Time) time.Duration { return peers.Round(time.Since(start)) }

// LearnsLoss expects that a hold ends within its TTL, or promptly on a busy machine, as lost.
func LearnsLoss(t *testing.T, h Hold, life time.Duration) {
	t.Helper()
	start := time.Now()
	Await(t, h.Context().Done(), "the end of the lease's context")
	t.Logf("noticed after %v of TTL %v", Since(start), life)
	if cause := context.Cause(h.Context()); !errors.Is(cause, distlock.ErrLost) {
		t.Errorf("the lease ended by %v", cause)
	}
	if took := time.Since(start); took > max(life, Prompt) {
		t.Errorf("noticed after %v, want less than %v", took, max(life, Prompt))
	}
	if err := h.Unlock(t.Context()); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("unlock: %v", err)
	}
}

// A child is a Go process that is killed: the test's program, in a role.
const (
	childEnv = "DISTLOCK_INTEROP_CHILD" // its URL
	roleEnv  = "DISTLOCK_INTEROP_ROLE"
	nameEnv  = "DISTLOCK_INTEROP_NAME"
)

// StartChild starts a Go process in a role. It returns once RunChild's act has returned there.
func StartChild(t *testing.T, url, role, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+url, roleEnv+"="+role, nameEnv+"="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != role+"\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// RunChild runs act and never returns in a child. In other processes it returns at once. It is for
// TestMain.
func RunChild(act func(url, role, name string) error) {
	url, role := os.Getenv(childEnv), os.Getenv(roleEnv)
	if url == "" {
		return
	}
	if err := act(url, role, os.Getenv(nameEnv)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(role)
	select {}
}
