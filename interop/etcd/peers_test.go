package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// mutexSide is a session of package concurrency.
type mutexSide struct{ *concurrency.Session }

func newMutex(t *testing.T, d *deployment) peers.Peer { return newSession(t, d.client(t)) }

func newSession(t *testing.T, c *clientv3.Client) mutexSide {
	t.Helper()
	s := must.Get(concurrency.NewSession(c, concurrency.WithTTL(int(leaseTTL.Seconds()))))(t)
	t.Cleanup(func() { s.Close() })
	return mutexSide{s}
}

func (s mutexSide) mutex(name string) *concurrency.Mutex {
	return concurrency.NewMutex(s.Session, prefix+name)
}

func (s mutexSide) Lock(ctx context.Context, name string) (peers.Held, error) {
	m := s.mutex(name)
	return mutexHeld{m}, m.Lock(ctx)
}

func (s mutexSide) Try(ctx context.Context, name string) (peers.Held, error) {
	m := s.mutex(name)
	err := m.TryLock(ctx)
	switch {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return mutexHeld{m}, nil
}

type mutexHeld struct{ *concurrency.Mutex }

func (h mutexHeld) Fence() uint64 { return uint64(h.Header().Revision) }

// v3lockSide is a lease that is kept alive, for which the server locks.
type v3lockSide struct {
	service v3lockpb.LockClient
	lease   clientv3.LeaseID
}

func newV3lock(t *testing.T, d *deployment) peers.Peer { return leaseV3lock(t, d.client(t), leaseTTL) }

func leaseV3lock(t *testing.T, c *clientv3.Client, ttl time.Duration) v3lockSide {
	t.Helper()
	l := must.Get(c.Grant(t.Context(), int64(ttl.Seconds())))(t)
	alive := must.Get(c.KeepAlive(t.Context(), l.ID))(t)
	go func() {
		for range alive {
		}
	}()
	return v3lockSide{v3lockpb.NewLockClient(c.ActiveConnection()), l.ID}
}

func (s v3lockSide) Lock(ctx context.Context, name string) (peers.Held, error) {
	r, err := s.service.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(prefix + name), Lease: int64(s.lease)})
	return v3lockHeld{s, r}, err
}

type v3lockHeld struct {
	v3lockSide
	answer *v3lockpb.LockResponse
}

func (h v3lockHeld) Unlock(ctx context.Context) error {
	_, err := h.service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: h.answer.Key})
	return err
}

func (h v3lockHeld) Fence() uint64 { return uint64(h.answer.Header.Revision) }

// etcdctlSide is etcdctl lock, with a process for each lock.
type etcdctlSide struct {
	t    *testing.T
	path string
	addr string
	fifo string // a line in it ends the command under the lock
}

func newEtcdctl(current bool) func(t *testing.T, d *deployment) peers.Peer {
	return func(t *testing.T, d *deployment) peers.Peer {
		fifo := filepath.Join(t.TempDir(), "fifo")
		must.OK(t, syscall.Mkfifo(fifo, 0o600))
		return etcdctlSide{t, testserver.Etcdctl(t, current), d.Addr(), fifo}
	}
}

// Lock runs a command under the lock that prints the fence and waits.
func (s etcdctlSide) Lock(_ context.Context, name string) (peers.Held, error) {
	// Opened for both directions, so that neither open nor write blocks.
	end, err := os.OpenFile(s.fifo, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	h := &etcdctlHeld{end: end}
	line, err := h.start(s, "--ttl", fmt.Sprint(leaseTTL.Seconds()), prefix+name, "--", "sh", "-c", `echo "$ETCD_LOCK_REV"; read x <"$0"`, s.fifo)
	if err != nil {
		return nil, err
	}
	h.rev, err = strconv.ParseUint(line, 10, 64)
	return h, err
}

type etcdctlHeld struct {
	cmd *exec.Cmd
	end *os.File
	rev uint64
}

// start returns the first line that etcdctl lock prints, when it has the lock.
func (h *etcdctlHeld) start(s etcdctlSide, args ...string) (string, error) {
	h.cmd = exec.Command(s.path, append([]string{"--endpoints", s.addr, "lock"}, args...)...)
	h.cmd.Stderr = os.Stderr
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := testserver.Spawn(h.cmd); err != nil {
		return "", err
	}
	s.t.Cleanup(func() { h.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Unlock ends the command, and waits until etcdctl has unlocked.
func (h *etcdctlHeld) Unlock(context.Context) error {
	defer h.end.Close()
	if _, err := h.end.WriteString("\n"); err != nil {
		return err
	}
	return h.cmd.Wait()
}

func (h *etcdctlHeld) Fence() uint64 { return h.rev }
