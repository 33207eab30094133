//go:build unix

package cli

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

// send sends a signal to distlock itself.
func (p *process) send(sig syscall.Signal) {
	p.t.Helper()
	must.OK(p.t, p.Process.Signal(sig))
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1,
		"USR2": syscall.SIGUSR2, "ALRM": syscall.SIGALRM, "WINCH": syscall.SIGWINCH,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, lockFile(t), "run", "x", "--", "sh", "-c", `trap "echo caught; exit 9" `+name+`; echo ready; while :; do sleep 0.01; done`)
			p.out.await(t, "ready")
			p.send(sig)
			p.must(9).out.await(t, "caught")
		})
	}
}

// The whole group gets the signal: must waits until no process has the output open.
func TestSignalsReachGrandchildren(t *testing.T) {
	t.Parallel()
	p := start(t, lockFile(t), "run", "x", "--", "sh", "-c", `sh -c "echo ready; sleep 1000" & wait`)
	p.out.await(t, "ready")
	p.send(syscall.SIGTERM)
	p.must(128 + 15)
}

func TestSignalEndsTheWait(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "x")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := start(t, url, "run", "x", "--", "echo", "ran")
		// It shows that it is up by nothing but its answer to the signal, which may also
		// come before it listens: then the signal itself ends it.
		finishWith(t, url, 75, "run", "--wait", "50ms", "x", "--", "true")
		p.send(sig)
		if code := p.code(); code != 128+int(sig) && code != -1 || p.out.String() != "" {
			t.Errorf("%v: exit code %d, %q", sig, code, p.out.String())
		}
	}
	release()
	first.must(0)
}

func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	p := command(t, lockFile(t))
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$SELF" run x -- sh -c 'kill -HUP $$; echo survived'`}
	p.begin()
	p.must(0).out.await(t, "survived")
}

func TestKilledHolder(t *testing.T) {
	t.Parallel()
	withTTL(t, 4*time.Second, func(ttl time.Duration) error {
		url := lockFile(t)
		p := start(t, url, "run", "--ttl", ttl.String(), "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"; exec sleep 1000`)
		p.out.await(t, "\n")
		next := start(t, url, "run", "x", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"`)
		var shown lockJSON
		err := json.Unmarshal([]byte(finish(t, url, "show", "--json", "x").out.String()), &shown)
		p.send(syscall.SIGKILL)
		next.must(0)
		if runtime.GOOS == "linux" {
			if code := p.code(); code != -1 { // its command, which has the output open, is gone too
				return fmt.Errorf("a killed one ends with %d", code)
			}
		}
		a, b := fenceIn(t, p.out.String()), fenceIn(t, next.out.String())
		if b <= a {
			t.Errorf("fences %d, then %d", a, b)
		}
		if h := shown.Holders; err != nil || len(h) != 1 || *h[0].Fence != fmt.Sprint(a) {
			return fmt.Errorf("its lock was not seen, with a TTL of %v: %+v, %v", ttl, h, err)
		}
		if left := *shown.Holders[0].LeftMS; left > ttl.Milliseconds() { // without --ttl it would be 30 s
			t.Errorf("with a TTL of %v, %d ms were left", ttl, left)
		}
		return nil
	})
}

func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p := start(t, url, "run", "--ttl", "1s", "x", "--", "sh", "-c", `echo ready; sleep 1000 & wait`)
	p.out.await(t, "ready")
	p.send(syscall.SIGSTOP)
	other, release := hold(t, url, "x")
	before := finish(t, url, "show", "x", "--json").out.String()
	p.send(syscall.SIGCONT)
	p.must(76)
	after := finish(t, url, "show", "x", "--json").out.String()
	if owner(t, before) != owner(t, after) {
		t.Errorf("the other holder was disturbed: %s, then %s", before, after)
	}
	release()
	other.must(0)
}

func owner(t *testing.T, shown string) string {
	t.Helper()
	_, rest, ok := strings.Cut(shown, `"owner": "`)
	if !ok {
		t.Fatalf("not held: %s", shown)
	}
	return rest[:36]
}

func TestBrokenLock(t *testing.T) {
	t.Parallel()
	for policy, code := range map[string]int{"term": 76, "kill": 76, "ignore": 76} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			url := lockFile(t)
			p := command(t, url, "run", "--ttl", "15s", "--on-loss", policy, "x", "--", "sh", "-c", "echo ready; cat; echo went on")
			in := p.input()
			p.begin()
			p.out.await(t, "ready")
			finishWith(t, url, 0, "unlock", "--force", "x")
			p.errors.await(t, "lock lost")
			if policy == "ignore" {
				in.Close()
			}
			p.must(code)
			if wentOn := strings.Contains(p.out.String(), "went on"); wentOn != (policy == "ignore") {
				t.Errorf("went on: %v", wentOn)
			}
		})
	}
}

// silentServer returns a URL, and waits for a client that connects to it and gets no answer.
func silentServer(t *testing.T) (url string, awaitClient func()) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	return "redis://" + l.Addr().String(), func() {
		t.Helper()
		c := must.Get(l.Accept())(t)
		t.Cleanup(func() { c.Close() })
	}
}

// A signal ends a command with its exit code while the server does not answer.
func TestSignalAtASilentServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		sig  syscall.Signal
		code int
	}{
		{"show x", syscall.SIGTERM, 143}, {"ls", syscall.SIGTERM, 143}, {"ls", syscall.SIGINT, 130}, {"release x", syscall.SIGTERM, 143},
		{"verify", syscall.SIGTERM, 143}, {"serve", syscall.SIGTERM, 0}, {"serve", syscall.SIGINT, 0},
	} {
		t.Run(test.args+" "+test.sig.String(), func(t *testing.T) {
			t.Parallel()
			url, awaitClient := silentServer(t)
			args := strings.Fields(test.args)
			if args[0] == "verify" {
				args = append(args, url)
			}
			p := command(t, url, args...)
			p.Env = append(p.Env, ownerVariable+"=owner")
			p.begin()
			awaitClient()
			p.send(test.sig)
			p.must(test.code)
		})
	}
}

// A Close that waits for the end of --min-hold goes on while the size of the terminal changes, and ends by a signal.
func TestMinHoldDuringAResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := &signals{ch: make(chan os.Signal, 2)}, time.Now()
		closing := func() error { time.Sleep(time.Minute); return nil }
		s.ch <- syscall.SIGWINCH
		if s.giveBack(forever, closing); time.Since(began) < time.Minute {
			t.Errorf("it ended after %v", time.Since(began))
		}
		s.ch <- syscall.SIGTERM
		if s.giveBack(forever, closing); time.Since(began) > time.Minute+time.Second {
			t.Error("SIGTERM did not end it")
		}
		time.Sleep(time.Minute)
	})
}

// blockWrites keeps everybody from writing to a lock file, so that renewals have no
// answer.
func blockWrites(t *testing.T, url string) (release func()) {
	t.Helper()
	db := must.Get(sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:")))(t)
	conn, err := db.Conn(context.Background())
	if err == nil {
		_, err = conn.ExecContext(context.Background(), "PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { conn.Close(); db.Close() }
}

// A command that obeys has --grace to end while the lock is still its own.
func TestToldToStopInTime(t *testing.T) {
	t.Parallel()
	withTTL(t, 10*time.Second, func(ttl time.Duration) error {
		url := lockFile(t)
		p := command(t, url, "run", "--ttl", ttl.String(), "--grace", (ttl / 2).String(), "x", "--", "sh", "-c", `trap "echo told; cat; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
		in := p.input()
		p.begin()
		p.out.await(t, "ready")
		release := blockWrites(t, url)
		p.out.await(t, "told")
		release()
		_, listed, _ := inProcess("--url", url, "ls")
		in.Close()
		p.must(76)
		if !strings.Contains(listed, "exclusive") {
			return fmt.Errorf("the lock has ended when the command is told: %q", listed)
		}
		if text := p.errors.String(); strings.Contains(text, "killing") {
			return fmt.Errorf("killed, though it obeyed: %s", text)
		}
		return nil
	})
}

// A command that doesn't obey is killed with all its group, grandchildren that obey
// no better included, before the lock ends.
func TestKilledInTime(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"term", "kill"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			url := lockFile(t)
			p := start(t, url, "run", "--ttl", "4s", "--on-loss", policy, "x", "--", "sh", "-c", `trap "" TERM; sh -c "echo ready; sleep 1000" & wait; wait`)
			p.out.await(t, "ready")
			defer blockWrites(t, url)()
			p.must(76)
		})
	}
}

// A standard error that is not read, as of a terminal after Ctrl-S, delays no signal to the command.
func TestStuckStandardError(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"term", "kill"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			url, fifo := lockFile(t), filepath.Join(t.TempDir(), "fifo")
			must.OK(t, unix.Mkfifo(fifo, 0o600))
			p := command(t, url, "run", "--ttl", "4s", "--on-loss", policy, "x", "--", "sh", "-c", `exec >"$0"; echo ready; exec sleep 1000`, fifo)
			_, p.Stderr = fullPipe(t)
			p.begin()
			out := &output{}
			ended := make(chan error, 1)
			go func() {
				f, err := os.Open(fifo)
				if err == nil {
					_, err = io.Copy(out, f)
				}
				ended <- err
			}()
			out.await(t, "ready")
			defer blockWrites(t, url)()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("the command outlives its lock")
			}
		})
	}
}

// A command whose lock was lost while a message waited for the standard error is not started.
func TestLostBeforeTheStart(t *testing.T) {
	t.Parallel()
	withTTL(t, time.Second, func(ttl time.Duration) error {
		url := lockFile(t)
		p := command(t, url, "run", "-v", "--ttl", ttl.String(), "x", "--", "echo", "ran")
		unread, full := fullPipe(t)
		p.Stderr = full
		p.begin()
		for began, out := time.Now(), ""; out != "x\n"; _, out, _ = inProcess("--url", url, "ls", "-o", "name") {
			if time.Since(began) > patience/3 {
				return errors.New("it is not seen to have the lock")
			}
		}
		release := blockWrites(t, url)
		time.Sleep(ttl * 3 / 2)
		go io.Copy(io.Discard, unread)
		p.must(exitLost)
		release()
		if p.out.String() != "" {
			t.Error("the command ran without the lock")
		}
		return nil
	})
}

// fullPipe returns a pipe that takes nothing more until it is read.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	must.OK(t, unix.Pipe(fds[:]))
	must.OK(t, unix.SetNonblock(fds[1], true))
	for _, size := range []int{4096, 1} {
		for {
			if _, err := unix.Write(fds[1], make([]byte, size)); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	must.OK(t, unix.SetNonblock(fds[1], false))
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	r, w = os.NewFile(uintptr(fds[0]), "unread"), os.NewFile(uintptr(fds[1]), "full")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// If the leader of a group obeys, the processes of the group that don't are still killed.
func TestGroupOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p := start(t, url, "run", "--ttl", "4s", "x", "--", "sh", "-c", `(trap "" TERM; echo ready; sleep 1000) & trap "exit 0" TERM; while :; do sleep 0.01; done`)
	p.out.await(t, "ready")
	defer blockWrites(t, url)()
	p.must(76)
}

// The same if the server is back before the lock is lost, and the command has ended upon the notice.
func TestGroupOutlivesTheNotice(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p := start(t, url, "run", "--ttl", "6s", "x", "--", "sh", "-c", `(trap "" TERM; echo ready; sleep 1000) & trap "exit 0" TERM; while :; do sleep 0.01; done`)
	p.out.await(t, "ready")
	release := blockWrites(t, url)
	p.errors.awaitThat(t, "a notice", func(text string) bool {
		return strings.Contains(text, "can't be renewed") || strings.Contains(text, "lost")
	})
	release()
	p.must(76)
}

// A signal, or a request for the lock, ends the command before a process that it has started. That one works on under the lock.
func TestGroupOutlivesASignal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string
		end    func(url string, p *process)
		code   int
	}{
		"SIGTERM":       {"", func(_ string, p *process) { p.send(syscall.SIGTERM) }, 143},
		"SIGHUP":        {"", func(_ string, p *process) { p.send(syscall.SIGHUP); p.send(syscall.SIGWINCH) }, 129},
		"SIGUSR1":       {"", func(_ string, p *process) { p.send(syscall.SIGUSR1) }, 138},
		"caught SIGHUP": {`trap "exit 0" HUP`, func(_ string, p *process) { p.send(syscall.SIGHUP) }, 0},
		"the request":   {"", func(url string, _ *process) { finishWith(t, url, 0, "unlock", "--ask", "x") }, 143},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, dir := askedFile(t), t.TempDir()
			p := start(t, url, "run", "--on-ask", "term", "x", "--", "sh", "-c", `cd `+dir+`; `+c.before+`
				(trap "echo told; until [ -e end ]; do sleep 0.01; done; exit" HUP TERM USR1; echo ready; while :; do sleep 0.01; done) & wait`)
			p.out.await(t, "ready")
			c.end(url, p)
			p.out.await(t, "told")
			time.Sleep(100 * time.Millisecond) // were that too short, the test would only see less
			finishWith(t, url, 75, "run", "--no-wait", "x", "--", "true")
			must.OK(t, os.WriteFile(dir+"/end", nil, 0o600))
			p.must(c.code)
			finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
		})
	}
}

// Another signal ends the wait for such a process.
func TestSecondSignalEndsTheWaitForTheGroup(t *testing.T) {
	t.Parallel()
	url, dir := lockFile(t), t.TempDir()
	p := start(t, url, "run", "x", "--", "sh", "-c", `(trap "echo told; exec >/dev/null 2>&1" TERM; echo ready; while [ -e `+dir+` ]; do sleep 0.01; done) & wait`)
	p.out.await(t, "ready")
	p.send(syscall.SIGTERM)
	p.out.await(t, "told")
	p.errors.await(t, "another signal ends the wait")
	p.send(syscall.SIGTERM)
	p.must(143)
	finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
}

// A command that was stopped keeps its lock.
func TestStoppedCommand(t *testing.T) {
	t.Parallel()
	withTTL(t, 6*time.Second, func(ttl time.Duration) error {
		url := lockFile(t)
		p := start(t, url, "run", "--ttl", ttl.String(), "x", "--", "sh", "-c", `echo ready; kill -STOP $$; echo continued`)
		p.out.await(t, "ready")
		other := finish(t, url, "run", "--wait", (ttl + time.Second).String(), "x", "--", "true")
		p.send(syscall.SIGCONT)
		if code := p.code(); code != 0 || other.ProcessState.ExitCode() == 0 || !strings.Contains(p.out.String(), "continued") {
			return fmt.Errorf("it ends with %d, another with %v: %s%s", code, other.ProcessState, p.out.String(), p.errors.String())
		}
		return nil
	})
}

// A signal ends a command that was stopped.
func TestSignalToAStoppedCommand(t *testing.T) {
	t.Parallel()
	p := start(t, lockFile(t), "run", "x", "--", "sh", "-c", `echo ready; kill -STOP $$; sleep 1000`)
	p.out.await(t, "ready")
	p.send(syscall.SIGTERM)
	p.must(143)
}

// Revoking a lock of another process needs no server here: the scheme asked keeps locks as sqlite
// does, and a file for each owner whose lock was revoked.
func init() {
	driver.Register("asked", func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		b, err := driver.Open(ctx, "sqlite:"+u.Path)
		if err != nil {
			return nil, err
		}
		return &askable{Backend: b, Inspector: b.(driver.Inspector), dir: filepath.Dir(u.Path)}, nil
	})
}

type askable struct {
	driver.Backend
	driver.Inspector
	dir string
}

func (b *askable) Caps() driver.Caps {
	caps := b.Backend.Caps()
	caps.Revocable = caps.Modes
	return caps
}

func (b *askable) note(owner string) string { return filepath.Join(b.dir, "asked "+owner) }

// Acquire listens for as long as the process lives.
func (b *askable) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if err == nil && r.OnRevoke != nil {
		go func() {
			for {
				if _, err := os.Stat(b.note(r.Owner)); err == nil {
					r.OnRevoke()
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	return g, err
}

func (b *askable) Revoke(_ context.Context, h driver.Hold) error {
	return os.WriteFile(b.note(h.Owner), nil, 0o600)
}

func askedFile(t *testing.T) string {
	t.Helper()
	return strings.Replace(lockFile(t), "sqlite:", "asked:", 1)
}

// A command whose lock is revoked gets a signal to stop, keeps the lock until it has stopped, and
// returns its own exit code.
func TestStopsWhenAsked(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	for _, names := range [][]string{{"x"}, {"x", "y"}} {
		p := command(t, url, append(append([]string{"run"}, names...), "--", "sh", "-c",
			`trap "echo told; read go; exit 9" TERM; echo ready; while :; do sleep 0.01; done`)...)
		in := p.input()
		p.begin()
		p.out.await(t, "ready")
		finishWith(t, url, 0, "unlock", "--ask", "x")
		p.out.await(t, "told")
		finishWith(t, url, 75, "run", "--no-wait", "x", "--", "true")
		in.Close()
		p.must(9)
		if !strings.Contains(p.errors.String(), "the lock was asked for; stopping sh") {
			t.Errorf("stderr: %q", p.errors.String())
		}
		finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
	}
}

func TestGoesOnWhenAsked(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	p, release := hold(t, url, "--on-ask", "ignore", "x")
	finishWith(t, url, 0, "unlock", "--ask", "x")
	finishWith(t, url, 75, "run", "--wait", "100ms", "x", "--", "true")
	release()
	p.must(0)
}

// A holder whose lock is revoked while it waits for another one releases it, and waits again.
func TestGivesWayWhileWaiting(t *testing.T) {
	t.Parallel()
	url := askedFile(t)
	other, release := hold(t, url, "y")
	p := command(t, url, "run", "x", "y", "--", "echo", "done")
	p.begin()
	ends := func(code int, args ...string) bool { return finish(t, url, args...).ProcessState.ExitCode() == code }
	for range 2 { // its first attempt takes the lock for a moment only
		eventually(t, "it takes the first lock", func() bool { return ends(75, "run", "--no-wait", "x", "--", "true") })
	}
	eventually(t, "it gives way", func() bool {
		return ends(0, "unlock", "--ask", "x") && ends(0, "run", "--wait", "15s", "x", "--", "true")
	})
	release()
	other.must(0)
	if p.must(0); p.out.String() != "done\n" {
		t.Errorf("stdout: %q, stderr: %q", p.out.String(), p.errors.String())
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}
