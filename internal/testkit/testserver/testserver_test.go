package testserver

import (
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
)

// A child that has not executed its program yet has its parent's socket, as a copy has here.
func TestAwaitRefusal(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	child := must.Get(l.(*net.TCPListener).File())(t)
	l.Close()
	var closed atomic.Bool
	time.AfterFunc(50*time.Millisecond, func() {
		closed.Store(true)
		child.Close()
	})
	if err := AwaitRefusal(l.Addr().String()); err != nil || !closed.Load() {
		t.Errorf("%v; the child has closed its socket: %v", err, closed.Load())
	}
}

func TestMemberThatEndsIsReportedAtOnce(t *testing.T) {
	silent, broken := newRedis(t, "redis", redisServer), newRedis(t, "redis", redisServer)
	t.Cleanup(silent.end)
	t.Cleanup(broken.end)
	silent.args, broken.args = []string{"--port", "0"}, []string{"--no-such-option", "x"}
	silent.ready = func() error { return errNotYet }
	broken.ready = silent.ready
	if err := startTogether(silent.Process, broken.Process); err == nil || !strings.Contains(err.Error(), "ended at once") {
		t.Errorf("one of two ended: %v", err)
	}
	if silent.alive() {
		t.Error("the other one runs on")
	}
}

func TestMemberThatAnswersEndsWithTheOthers(t *testing.T) {
	quick, broken := newRedis(t, "redis", redisServer), newRedis(t, "redis", redisServer)
	t.Cleanup(quick.end)
	t.Cleanup(broken.end)
	answered := make(chan struct{})
	quick.args, broken.args = []string{"--port", "0"}, []string{"--port", "0"}
	quick.ready = sync.OnceValue(func() error {
		close(answered)
		return nil
	})
	broken.ready = func() error {
		<-answered
		broken.cmd.Process.Kill()
		return errNotYet
	}
	if err := startTogether(quick.Process, broken.Process); err == nil {
		t.Error("one of two ended, and both started")
	}
	if quick.alive() {
		t.Error("the one that answered runs on")
	}
}

func TestAwaitNeedsItsProcess(t *testing.T) {
	srv := Redis(t)
	srv.Kill()
	if err := await(func() error { return errNotYet }, srv.Process); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a condition of a killed server: %v", err)
	}
}
