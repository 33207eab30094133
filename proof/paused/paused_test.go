// Package paused tests the data that a lock protects while its holder is paused for longer than its
// lease, with a fence and without.
package paused

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == childArg {
		if err := hold(context.Background(), os.Args[2], os.Args[3], os.Args[4], os.Args[5] == fenced); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testserver.Run(m))
}

const (
	childArg = "hold"
	fenced   = "fenced"
	plain    = "plain"
	name     = "stock:7"
	ttl      = 600 * time.Millisecond
)

// open connects to the locks and to the protected data.
func open(ctx context.Context, storeKind, lockURL, dataURL string, o *distlock.Options) (*distlock.Client, store, error) {
	locks, err := distlock.Open(ctx, lockURL, o)
	if err != nil {
		return nil, nil, err
	}
	s, err := kinds[storeKind].open(dataURL)
	return locks, s, err
}

// hold runs the holder that will be paused. Like many programs, it checks that it still has the lock,
// and then writes.
func hold(ctx context.Context, storeKind, lockURL, dataURL string, withFence bool) error {
	locks, s, err := open(ctx, storeKind, lockURL, dataURL, &distlock.Options{TTL: ttl})
	if err != nil {
		return err
	}
	n, f, err := readUnderLock(ctx, locks, s, withFence)
	if err != nil {
		return err
	}
	fmt.Println("looked")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	err = s.write(ctx, n-1, f)
	if err != nil && !errors.Is(err, fence.ErrStale) {
		return err
	}
	fmt.Println("stale:", err != nil)
	return nil
}

// readUnderLock takes the lock and reads. It retries if it has lost the lock already, since the machine
// may be slow.
func readUnderLock(ctx context.Context, locks *distlock.Client, s store, withFence bool) (n int, f uint64, err error) {
	for {
		lease, err := locks.Mutex(name).Lock(ctx)
		if err != nil {
			return 0, 0, err
		}
		f = fenceOf(lease, withFence)
		n, err = s.read(ctx, f)
		if err != nil || lease.Err() == nil {
			return n, f, err
		}
	}
}

func fenceOf(lease *distlock.Lease, withFence bool) uint64 {
	if withFence {
		return lease.Fence()
	}
	return 0
}

// A hundred items are in stock. A holder reads that, checks that it has the lock, and is paused before
// it sells one. Its lease ends, and another holder sells ten. Then the first one continues.
func TestPausedHolder(t *testing.T) {
	for storeKind, k := range kinds {
		t.Run(storeKind, func(t *testing.T) {
			t.Parallel()
			t.Run(plain, func(t *testing.T) {
				if stale, left := overtake(t, storeKind, k, false); stale || left != 99 {
					t.Errorf("stale: %v, %d are left; want the ten to be lost", stale, left)
				}
			})
			t.Run(fenced, func(t *testing.T) {
				if stale, left := overtake(t, storeKind, k, true); !stale || left != 90 {
					t.Errorf("stale: %v, %d are left; want the paused one to be refused", stale, left)
				}
			})
		})
	}
}

// overtake reports whether the paused holder was refused, and how many items are left.
func overtake(t *testing.T, storeKind string, k kind, withFence bool) (stale bool, left int) {
	ctx, cancel := context.WithTimeout(t.Context(), locktest.Patience)
	defer cancel()
	lockURL, dataURL := k.start(t)
	locks, s, err := open(ctx, storeKind, lockURL, dataURL, locktest.Patient())
	must.OK(t, err)
	defer locks.Close()
	must.OK(t, s.write(ctx, 100, 0))
	c := startChild(t, storeKind, lockURL, dataURL, withFence)
	c.expect(t, "looked")
	c.signal(t, syscall.SIGSTOP)
	must.OK(t, locks.Mutex(name).Do(ctx, func(ctx context.Context) error {
		f := fenceOf(distlock.FromContext(ctx), withFence)
		n, err := s.read(ctx, f)
		if err != nil {
			return err
		}
		return s.write(ctx, n-10, f)
	}))
	c.signal(t, syscall.SIGCONT)
	answer := c.finish(t)
	left = must.Get(s.read(ctx, 0))(t)
	return answer == "stale: true", left
}

// child is the process that is paused.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, storeKind, lockURL, dataURL string, withFence bool) *child {
	t.Helper()
	mode := plain
	if withFence {
		mode = fenced
	}
	cmd := exec.Command(os.Args[0], childArg, storeKind, lockURL, dataURL, mode)
	cmd.Stderr = os.Stderr
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{cmd, in, bufio.NewReader(out)}
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (c *child) expect(t *testing.T, want string) {
	t.Helper()
	must.Equal(t, c.line(t), want, "the child says")
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	must.OK(t, c.cmd.Process.Signal(s))
}

// finish lets the child write, and returns its answer.
func (c *child) finish(t *testing.T) string {
	t.Helper()
	must.Get(io.WriteString(c.in, "go on\n"))(t)
	return c.line(t)
}
