package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// asCommand makes the test binary behave as the command distlock, so that tests run
// real processes of it.
const asCommand = "CLI_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Main())
	}
	os.Setenv(asCommand, "1")
	os.Setenv("XDG_CONFIG_HOME", "/nonexistent") // no config file of the user who runs the tests
	if signal.Ignored(syscall.SIGHUP) {
		// As nohup leaves it: the commands that are tested would inherit that.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	// A program with the race detector sleeps for a second at its end, by default.
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	os.Exit(testserver.Run(m))
}

// unset removes an environment variable until the end of the test.
func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "")
	os.Unsetenv(name)
}

// patience is how long a test waits for what must come.
const patience = 3 * time.Minute

// withTTL tries something with a lock of a TTL, and again with three times as much: a machine that stood still for so long
// may be why it failed.
func withTTL(t *testing.T, ttl time.Duration, try func(ttl time.Duration) error) {
	t.Helper()
	for err := try(ttl); err != nil; err = try(ttl) {
		if ttl *= 3; ttl > time.Minute {
			t.Fatal(err)
		}
		t.Logf("once more, with a TTL of %v: %v", ttl, err)
	}
}

// process is a running distlock.
type process struct {
	*exec.Cmd
	t           *testing.T
	out, errors output
}

// lockFile returns the URL of a lock file of the test's own.
func lockFile(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
}

// command prepares a distlock that keeps its locks at url.
func command(t *testing.T, url string, args ...string) *process {
	t.Helper()
	self := must.Get(os.Executable())(t)
	p := &process{Cmd: exec.Command(self, args...), t: t}
	p.Env = append(os.Environ(), urlVariable+"="+url, "SELF="+self)
	p.Stdout, p.Stderr = &p.out, &p.errors
	p.WaitDelay = patience
	return p
}

// start starts a distlock that is killed at the end of the test at the latest.
func start(t *testing.T, url string, args ...string) *process {
	t.Helper()
	p := command(t, url, args...)
	p.begin()
	return p
}

func (p *process) begin() {
	p.t.Helper()
	must.OK(p.t, p.Start())
	p.t.Cleanup(func() {
		if p.ProcessState == nil {
			p.Process.Kill()
			p.Wait()
		}
	})
}

// code waits for the end, also of all that was started and shares the output, and
// returns the exit code; -1 if a signal ended it, but 130 for SIGINT, as for a shell: started from a terminal, distlock
// ends so.
func (p *process) code() int {
	p.t.Helper()
	stuck := time.AfterFunc(patience, func() { p.Process.Kill() })
	defer stuck.Stop()
	if err := p.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		p.t.Fatal("it left a process behind that has its output open")
	}
	if by, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && by.Signaled() && by.Signal() == syscall.SIGINT {
		return 128 + 2
	}
	return p.ProcessState.ExitCode()
}

// must wants an exit code.
func (p *process) must(code int) *process {
	p.t.Helper()
	if got := p.code(); got != code {
		p.t.Fatalf("exit code %d; want %d\nstdout: %s\nstderr: %s", got, code, p.out.String(), p.errors.String())
	}
	return p
}

// finish runs one to its end.
func finish(t *testing.T, url string, args ...string) *process {
	t.Helper()
	p := start(t, url, args...)
	p.code()
	return p
}

// output collects the output of a process.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// soFar returns the output so far, and a channel that is closed when there is more.
func (o *output) soFar() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.buf.String(), o.changed
}

// await waits until the output contains want, and returns it.
func (o *output) await(t *testing.T, want string) string {
	t.Helper()
	return o.awaitThat(t, strconv.Quote(want), func(text string) bool { return strings.Contains(text, want) })
}

// awaitThat waits until the output is as wanted, and returns it.
func (o *output) awaitThat(t *testing.T, what string, is func(text string) bool) string {
	t.Helper()
	late := time.After(patience)
	for {
		text, more := o.soFar()
		if is(text) {
			return text
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("waited in vain for %s; got: %q", what, text)
		}
	}
}

// inProcess runs the program within the test.
func inProcess(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

// input returns a standard input that stays open until it is closed.
func (p *process) input() io.WriteCloser {
	p.t.Helper()
	w := must.Get(p.StdinPipe())(p.t)
	return w
}

// hold starts a distlock that holds the locks until release is called.
func hold(t *testing.T, url string, flagsAndNames ...string) (p *process, release func()) {
	t.Helper()
	p = command(t, url, append(append([]string{"run"}, flagsAndNames...), "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"; cat`)...)
	in := p.input()
	p.begin()
	p.out.await(t, "fence ")
	return p, func() {
		if err := in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
}
