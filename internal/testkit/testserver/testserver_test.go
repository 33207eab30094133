package testserver

import (
	"strings"
	"sync"
	"testing"
)

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
