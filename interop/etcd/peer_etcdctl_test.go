package etcd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/distlock/distlock/internal/testkit/peers"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// etcdctlSide is etcdctl lock, a process for each lock.
type etcdctlSide struct {
	t    *testing.T
	path string
	addr string
	fifo string // what a command that it runs reads, until it is told to end
}

func newEtcdctl(current bool) func(t *testing.T, d *deployment) peers.Side {
	return func(t *testing.T, d *deployment) peers.Side {
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		return etcdctlSide{t, testserver.Etcdctl(t, current), d.Addr(), fifo}
	}
}

// Lock runs a command under the lock, which tells the fence and waits.
func (s etcdctlSide) Lock(_ context.Context, name string) (peers.Held, error) {
	// Opened for both, so that neither open nor write waits for the command to read.
	end, err := os.OpenFile(s.fifo, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	h := &etcdctlHeld{end: end}
	line, err := h.start(s, "--ttl", fmt.Sprint(lease.Seconds()), prefix+name, "--", "sh", "-c", `echo "$ETCD_LOCK_REV"; read x <"$0"`, s.fifo)
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

// start returns the first line that etcdctl lock writes, which it does when it has the
// lock.
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

// Unlock lets the command end, and etcdctl after it has unlocked.
func (h *etcdctlHeld) Unlock(context.Context) error {
	defer h.end.Close()
	if _, err := h.end.WriteString("\n"); err != nil {
		return err
	}
	return h.cmd.Wait()
}

func (h *etcdctlHeld) Fence() uint64 { return h.rev }
