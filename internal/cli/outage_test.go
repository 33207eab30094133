//go:build unix

package cli

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testserver"
)

// A server that is gone by the end of the wait is no holder that is in the way.
func TestServerGoesDuringTheWait(t *testing.T) {
	t.Parallel()
	for name, goAway := range map[string]func(*testserver.RedisServer){
		"killed": func(s *testserver.RedisServer) { s.Kill() },
		"paused": func(s *testserver.RedisServer) { s.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t)
			_, release := hold(t, s.URL(), "door")
			t.Cleanup(release)
			p := start(t, s.URL(), "run", "--wait", "3s", "--skip-ok", "door", "--", "true")
			finishWith(t, s.URL(), 75, "run", "--wait", "500ms", "door", "--", "true")
			goAway(s)
			p.must(exitUnreachable)
		})
	}
}

// A signal ends distlock also while a server that does not answer is to take the
// lock back.
func TestSignalWhileGivingBack(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	p := command(t, s.URL(), "run", "door", "--", "sh", "-c", `echo ready; cat >&2; echo done; exec sh -c "exit 0"`)
	in := p.input()
	p.begin()
	p.out.await(t, "ready")
	s.Pause()
	in.Close()
	p.out.await(t, "done")
	stop := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		// The first may still reach the command, which is at its end.
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			_ = p.Process.Signal(syscall.SIGTERM)
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				return
			}
		}
	})
	began := time.Now()
	code := p.code()
	close(stop)
	sender.Wait()
	if took := time.Since(began); code != 128+15 || took > 3*time.Second {
		t.Errorf("exit code %d after %v: %s", code, took, p.errors.String())
	}
}

// The end of a wait does not last longer because the server does not answer.
func TestSignalEndsTheWaitForASilentServer(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	_, release := hold(t, s.URL(), "door")
	t.Cleanup(release)
	p := start(t, s.URL(), "run", "door", "--", "true")
	finishWith(t, s.URL(), 75, "run", "--wait", "500ms", "door", "--", "true")
	s.Pause()
	began := time.Now()
	p.send(syscall.SIGINT)
	p.must(128 + 2)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("ended after %v", took)
	}
}
