//go:build unix

package cli

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
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
			var p *process
			for wait := 3 * time.Second; ; wait *= 3 {
				began := time.Now()
				p = start(t, s.URL(), "run", "--wait", wait.String(), "--skip-ok", "door", "--", "true")
				finishWith(t, s.URL(), 75, "run", "--wait", "500ms", "door", "--", "true")
				if time.Since(began) < wait/2 {
					break
				}
				p.code() // the machine is slow, and the wait may be over
			}
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
	patient, release := hold(t, s.URL(), "other")
	s.Pause()
	release()
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
	code := p.code()
	close(stop)
	sender.Wait()
	if code != 128+15 {
		t.Errorf("exit code %d: %s", code, p.errors.String())
	}
	if text := patient.errors.String(); text != "" {
		t.Errorf("it took as long as one without a signal: %s", text)
	}
}

// The end of a wait does not last longer because the server does not answer.
func TestSignalEndsTheWaitForASilentServer(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	patient, release := hold(t, s.URL(), "door")
	p := start(t, s.URL(), "run", "--fair", "door", "--", "true")
	eventually(t, "it stands in line", func() bool {
		_, out, _ := inProcess("--url", s.URL(), "show", "--json", "door")
		return strings.Contains(out, `"waiter_count": 1`)
	})
	s.Pause()
	release()
	p.send(syscall.SIGINT)
	p.must(128 + 2)
	if text := patient.errors.String(); text != "" {
		t.Errorf("it took as long as one without a signal: %s", text)
	}
}

// A server that is killed is told by lines of distlock's own, and not by its Redis client.
func TestGoneServerIsToldOnce(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	p := start(t, s.URL(), "run", "--ttl", "2s", "door", "--", "sh", "-c", "echo ready; exec sleep 60")
	p.out.await(t, "ready")
	s.Kill()
	p.must(exitLost)
	q := finish(t, s.URL(), "show", "door")
	for _, text := range []string{p.errors.String(), q.errors.String()} {
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "distlock: ") {
				t.Errorf("the standard error has %q", line)
			}
		}
	}
}
