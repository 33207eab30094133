//go:build unix

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server that comes back within --wait is waited for, from the start as later.
func TestWaitForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	s.Kill()
	p := start(t, s.URL(), "run", "--wait", "1m", "-v", "door", "--", "true")
	time.Sleep(300 * time.Millisecond) // long enough for what gave up at once
	s.Start()
	p.must(0)
	if text := p.errors.String(); !strings.Contains(text, `acquired "door" at redis://`) || !strings.Contains(text, `released "door" after `) {
		t.Errorf("-v says: %s", text)
	}
	s.Kill()
	finishWith(t, s.URL(), exitUnreachable, "run", "--wait", "500ms", "door", "--", "true")
}

// A wait for a server ends with what is wrong there, however often it was asked in vain.
func TestWaitForAnotherKindOfServer(t *testing.T) {
	t.Parallel()
	addr := must.Get(url.Parse(testserver.SharedEtcd(t).URL()))(t).Host
	p := finishWith(t, "redis://"+addr, exitUnreachable, "run", "--wait", "2s", "door", "--", "true")
	if text := p.errors.String(); !strings.Contains(text, addr+" speaks HTTP, not Redis") {
		t.Errorf("it says: %s", text)
	}
}

// A run under a lock does not wait for its own end.
func TestRunWithinItself(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	for _, outer := range []string{"", "--shared "} {
		p := finishWith(t, url, exitUsage, "run", "-q", "outer", "--", "sh", "-c",
			`"$SELF" run `+outer+`door -- "$SELF" run -q other door -- true`)
		if text := p.errors.String(); !strings.Contains(text, `lock "door" is held by an outer distlock`) {
			t.Errorf("%q: got %q", outer, text)
		}
		// Asked not to wait it is busy, as for all others.
		finishWith(t, url, exitBusy, "run", "-q", "outer", "--", "sh", "-c",
			`"$SELF" run `+outer+`door -- "$SELF" run --no-wait door -- true`)
	}
}

// A semaphore that an outer run holds has permits that others can release.
func TestNestedPermits(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	other, release := hold(t, url, "--permits", "2", "gpu")
	p := start(t, url, "run", "--permits", "2", "gpu", "--", "sh", "-c", `"$SELF" run --permits 2 gpu -- echo inner`)
	awaitWaiter(t, url, "gpu")
	release()
	other.must(0)
	p.must(0).out.await(t, "inner")
	for _, inner := range []string{"", "--permits 1"} {
		finishWith(t, url, exitUsage, "run", "--permits", "1", "gpu", "--", "sh", "-c", `"$SELF" run `+inner+` gpu -- true`)
	}
}

// The memory of one process excludes no other one.
func TestRunRefusesMemory(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"mem:", "mem:jobs"} {
		p := finishWith(t, url, exitUsage, "run", "door", "--", "true")
		if text := p.errors.String(); !strings.Contains(text, "no other process sees them") {
			t.Errorf("%s: got %q", url, text)
		}
	}
}

// An output that can't be written is no success.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full: ", err)
	}
	defer full.Close()
	url := lockFile(t)
	for _, args := range []string{"schema mysql", "schema postgres", "version", "--help", "completion bash", "show x", "ls --json", "verify --list"} {
		p := command(t, url, strings.Fields(args)...)
		p.Stdout = full
		p.begin()
		if code := p.code(); code != exitFailure || !strings.Contains(p.errors.String(), "can't write the output: ") {
			t.Errorf("%s: exit code %d, %q", args, code, p.errors.String())
		}
	}
	file := filepath.Join(t.TempDir(), "owner")
	p := command(t, url, "lock", "--ttl", "1m", "--owner-file", file, "x")
	p.Stdout = full
	p.begin()
	code := p.code()
	if _, err := os.Stat(file); code != exitFailure || !os.IsNotExist(err) {
		t.Errorf("exit code %d; the owner's file of a lock that was released: %v", code, err)
	}
}

// Off a terminal a wait says what it waits for, at first and then now and then.
func TestReportsOffTheTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := must.Get(distlock.New(memlock.New(), &distlock.Options{Meta: map[string]string{"program": "backup"}}))(t)
		defer c.Close()
		lease := must.Get(c.Mutex("door").Lock(t.Context()))(t)
		defer lease.Unlock(t.Context())
		for _, test := range []struct {
			after time.Duration
			quiet bool
			lines int
		}{
			{4 * time.Second, false, 0}, {6 * time.Second, false, 1}, {34 * time.Second, false, 1}, {36 * time.Second, false, 2}, {2 * time.Minute, false, 4},
			{time.Hour, true, 0},
		} {
			var w bytes.Buffer
			n := newNotice(&w, test.quiet, func(s string) string { return s })
			n.client = c
			name := "door"
			n.name.Store(&name)
			stop := n.start(t.Context(), nil)
			time.Sleep(test.after)
			stop()
			if got := strings.Count(w.String(), "\n"); got != test.lines {
				t.Errorf("after %v, quiet %v: %d lines; want %d: %s", test.after, test.quiet, got, test.lines, w.String())
			}
			if want := `distlock: waiting for "door", held by "backup"`; test.lines > 0 && !strings.HasPrefix(w.String(), want) {
				t.Errorf("got %q; want %q", w.String(), want)
			}
		}
	})
}

// A standby says little while another leads, and that there is no answer for as long as there is none. A lock that is held and
// that the store does not show is no outage.
func TestReportsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &outage{Backend: memlock.New()}
		_ = must.Get(b.Acquire(t.Context(), driver.Request{Hold: driver.Hold{Name: "door", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: 24 * time.Hour}}))(t)
		var w lines
		n := newNotice(&w, false, func(s string) string { return s })
		n.next = time.Hour // as for an election
		c := must.Get(distlock.New(b, &distlock.Options{Observer: n.observer()}))(t)
		defer c.Close()
		n.client = c
		ctx, cancel := context.WithCancel(t.Context())
		go c.Mutex("door").Lock(ctx)
		stop := n.start(ctx, nil)
		said := func(after time.Duration, least, most int, want string) {
			t.Helper()
			w.take()
			time.Sleep(after)
			text := w.take()
			if lines := strings.Count(text, "\n"); lines < least || lines > most || lines != strings.Count(text, want) {
				t.Errorf("%d lines in %v; want %d to %d with %q: %s", lines, after, least, most, want, text)
			}
		}
		said(10*time.Minute, 1, 1, `waiting for "door" (`)
		b.down.Store(true)
		said(time.Minute, 1, 3, "no answer: ")
		said(time.Hour, 115, 121, "no answer: connection refused")
		b.down.Store(false)
		time.Sleep(2 * time.Minute)
		said(10*time.Minute, 0, 1, `waiting for "door" (`)
		cancel()
		stop()
	})
}

// lines are what was written.
type lines struct {
	mu   sync.Mutex
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

// take returns what was written since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(l.text)
	l.text = nil
	return text
}

// outage is a store of locks that it does not show, and which is down now and then.
type outage struct {
	*memlock.Backend
	down atomic.Bool
}

func (o *outage) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if o.down.Load() {
		return driver.Grant{}, errors.New("connection refused")
	}
	return o.Backend.Acquire(ctx, r)
}

func (o *outage) Inspect(context.Context, string) (driver.Info, error) {
	return driver.Info{}, driver.ErrUnsupported
}

// A wait for an unreachable server is reported with its error, without the password.
func TestReportsAnUnreachableServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		n := newNotice(&w, false, func(s string) string { return strings.ReplaceAll(s, "s3cr3t", "xxxxx") })
		stop := n.start(ctx, errors.New("distlock: dial s3cr3t: connection refused"))
		time.Sleep(firstReport + time.Second)
		cancel()
		stop()
		if got, want := w.String(), "distlock: waiting for the server (dial xxxxx: connection refused) (5s)\n"; got != want {
			t.Errorf("got %q; want %q", got, want)
		}
	})
}

// A server that is gone by the end of the wait is no holder that is in the way.
func TestServerGoesDuringTheWait(t *testing.T) {
	t.Parallel()
	for name, goAway := range map[string]func(*testserver.RedisServer){
		"killed": func(s *testserver.RedisServer) { s.Kill() },
		"paused": func(s *testserver.RedisServer) { s.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for wait := 3 * time.Second; ; wait *= 3 { // on a slow machine a wait may be over before
				s := testserver.Redis(t)
				_, release := hold(t, s.URL(), "door")
				t.Cleanup(release)
				p := start(t, s.URL(), "run", "--wait", wait.String(), "--skip-ok", "door", "--", "true")
				finishWith(t, s.URL(), 75, "run", "--wait", "500ms", "door", "--", "true")
				goAway(s)
				code := p.code()
				if code == exitUnreachable {
					return
				}
				if wait > 30*time.Second {
					t.Fatalf("exit code %d: %s", code, p.errors.String())
				}
			}
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
	eventually(t, "it stands in the queue", func() bool {
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

// distlock itself reports a server that is killed. Its Redis client logs nothing.
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

// freed refuses attempts as if the name were in use as another kind of lock until a moment ago.
type freed struct {
	driver.Backend
	driver.Inspector
	refusals int
}

func (b *freed) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if b.refusals > 0 {
		b.refusals--
		return driver.Grant{}, fmt.Errorf("%w: the name is in use for another kind of lock", driver.ErrInvalid)
	}
	return b.Backend.Acquire(ctx, r)
}

// A name that was in use as another kind of lock can be free by the time it is looked at.
func TestOtherKindHasJustEnded(t *testing.T) {
	for refusals, want := range []error{nil, nil, nil, distlock.ErrInvalid} {
		mem := memlock.New()
		c := must.Get(distlock.New(&freed{mem, mem, refusals}, nil))(t)
		o := &runOptions{names: []string{"book"}, noWait: true}
		a := &acquirer{o: o, began: time.Now(), client: c, locks: distlock.Multi(c.Mutex("book"))}
		if _, err := a.acquire(t.Context()); !errors.Is(err, want) {
			t.Errorf("%d refusals: %v, want %v", refusals, err, want)
		}
		c.Close()
	}
}
