//go:build unix

package cli

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	must.OK(t, os.WriteFile(script, []byte("echo not executable\n"), 0o600))
	url := lockFile(t)
	for _, test := range []struct {
		url  string
		args []string
		code int
	}{
		{url, []string{"--", "true"}, 0},
		{url, []string{"--", "false"}, 1},
		{url, []string{"--", "sh", "-c", "exit 42"}, 42},
		{url, []string{"--", "sh", "-c", "kill -9 $$"}, 128 + 9},
		{url, []string{"--", "sh", "-c", "kill -15 $$"}, 128 + 15},
		{url, []string{"--", "no-such-command-anywhere"}, 127},
		{url, []string{"--", "./no/such/path"}, 127},
		{url, []string{"--", script}, 126},
		{url, []string{"--", "/"}, 126},
		{"redis://127.0.0.1:1", []string{"--", "true"}, 69},
		{"redis://127.0.0.1:1", []string{"--no-wait", "--skip-ok", "--", "true"}, 69},
		{"redis://127.0.0.1:1", []string{"--", "no-such-command-anywhere"}, 127},
		{"sqlite:/no/such/directory/locks.db", []string{"--", "true"}, 64},
	} {
		finishWith(t, test.url, test.code, append([]string{"run", "codes"}, test.args...)...)
	}
	if out := finish(t, url, "ls", "--json").out.String(); out != "[]\n" {
		t.Errorf("locks are left behind: %s", out)
	}
}

// finishWith runs one to its end, and wants an exit code. A wait that ends on a server which took a second to answer ends with
// another code than one that ends on a holder: it is repeated.
func finishWith(t *testing.T, url string, code int, args ...string) *process {
	t.Helper()
	p := finish(t, url, args...)
	for end := time.Now().Add(patience); code == exitBusy && p.ProcessState.ExitCode() == exitUnreachable && time.Now().Before(end); {
		p = finish(t, url, args...)
	}
	if got := p.ProcessState.ExitCode(); got != code {
		t.Errorf("%q: exit code %d; want %d; %s%s", args, got, code, p.out.String(), p.errors.String())
	}
	return p
}

func TestBusy(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	p, release := hold(t, url, "door")
	busy := finishWith(t, url, 75, "run", "--no-wait", "door", "--", "true")
	if text := busy.errors.String(); !strings.Contains(text, `lock "door" is held by "sh" pid `) {
		t.Errorf("busy says %q", text)
	}
	finishWith(t, url, 75, "run", "--wait", "0s", "door", "--", "true")
	finishWith(t, url, 75, "run", "--wait", "1ms", "door", "--", "true")
	waited := finishWith(t, url, 75, "run", "--wait", "100ms", "door", "--", "true")
	if text := waited.errors.String(); !strings.Contains(text, "gave up after") {
		t.Errorf("a wait says %q", text)
	}
	finishWith(t, url, 7, "run", "--no-wait", "--busy-code", "7", "door", "--", "true")
	quiet := finishWith(t, url, 0, "run", "--no-wait", "--skip-ok", "door", "--", "echo", "ran")
	if text := quiet.out.String() + quiet.errors.String(); text != "" {
		t.Errorf("--skip-ok says %q", text)
	}
	finishWith(t, url, 75, "run", "--no-wait", "other", "door", "--", "true")
	finishWith(t, url, 0, "run", "--no-wait", "other", "--", "true")
	release()
	p.must(0)
	finishWith(t, url, 0, "run", "--no-wait", "door", "--", "true")
}

// The scheme watched keeps locks as sqlite does, and says that holds end only for those who watch them.
func init() {
	driver.Register("watched", func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		b, err := driver.Open(ctx, "sqlite:"+u.Path)
		if err != nil {
			return nil, err
		}
		return watched{b}, nil
	})
}

type watched struct{ driver.Backend }

func (w watched) Caps() driver.Caps {
	caps := w.Backend.Caps()
	caps.Observed, caps.Queueing = true, driver.QueueNever
	return caps
}

// Where a dead holder's lock is free only for those who wait, a refusal says so, also one that is skipped.
func TestBusyWhereHoldsAreWatched(t *testing.T) {
	t.Parallel()
	url := strings.Replace(lockFile(t), "sqlite:", "watched:", 1)
	p, release := hold(t, url, "door")
	for code, options := range map[int][]string{75: {"--no-wait"}, 76: {"--wait", "1ms", "--busy-code", "76"}, 0: {"--no-wait", "--skip-ok"}} {
		busy := finishWith(t, url, code, append(append([]string{"run"}, options...), "door", "--", "true")...)
		if text := busy.errors.String(); !strings.Contains(text, `lock "door" is held by `) || !strings.Contains(text, "waits for longer than its TTL (--wait)") {
			t.Errorf("%v: %q", options, text)
		}
	}
	release()
	p.must(0)
}

func TestWaitsItsTurn(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, release := hold(t, url, "door")
	second := start(t, url, "run", "door", "--", "sh", "-c", `echo "fence $DISTLOCK_FENCE"`)
	// This run starts after second and is refused: first still holds the door.
	finishWith(t, url, 75, "run", "--wait", "50ms", "door", "--", "true")
	if text := second.out.String(); text != "" {
		t.Fatalf("ran beside the holder: %q", text)
	}
	release()
	first.must(0)
	second.must(0)
	if a, b := fenceIn(t, first.out.String()), fenceIn(t, second.out.String()); b <= a {
		t.Errorf("fences %d, then %d", a, b)
	}
}

var fenceLine = regexp.MustCompile(`fence (\d+)`)

func fenceIn(t *testing.T, text string) uint64 {
	t.Helper()
	m := fenceLine.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no fence in %q", text)
	}
	n := must.Get(strconv.ParseUint(m[1], 10, 64))(t)
	return n
}

func TestShared(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	one, releaseOne := hold(t, url, "--shared", "book")
	two, releaseTwo := hold(t, url, "--shared", "book")
	finishWith(t, url, 75, "run", "--no-wait", "book", "--", "true")
	finishWith(t, url, 75, "run", "--wait", "200ms", "book", "--", "true")
	alone := start(t, url, "run", "book", "--", "echo", "alone")
	releaseOne()
	one.must(0)
	finishWith(t, url, 75, "run", "--no-wait", "book", "--", "true")
	releaseTwo()
	two.must(0)
	alone.must(0).out.await(t, "alone")

	writer, release := hold(t, url, "book")
	finishWith(t, url, 75, "run", "--no-wait", "--shared", "book", "--", "true")
	reader := start(t, url, "run", "--shared", "book", "--", "echo", "read")
	release()
	writer.must(0)
	reader.must(0).out.await(t, "read")
}

func TestPermits(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	one, releaseOne := hold(t, url, "--permits", "2", "gpu")
	two, releaseTwo := hold(t, url, "--permits", "2", "gpu")
	finishWith(t, url, 75, "run", "--no-wait", "--permits", "2", "gpu", "--", "true")
	finishWith(t, url, 64, "run", "--no-wait", "--permits", "3", "gpu", "--", "true")
	third := start(t, url, "run", "--permits", "2", "gpu", "--", "echo", "third")
	awaitWaiters(t, url, "gpu", 1)
	alone := start(t, url, "run", "gpu", "--", "true")
	awaitWaiters(t, url, "gpu", 2)
	finishWith(t, url, 64, "run", "--permits", "3", "gpu", "--", "true") // also beside another kind
	releaseOne()
	one.must(0)
	third.must(0).out.await(t, "third")
	releaseTwo()
	two.must(0)
	alone.must(0)
}

// Runs of all kinds wait in one queue: one that comes between others that share the lock is served in its turn.
func TestKindsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, fair := range []string{"", "--fair"} {
		url, log := lockFile(t), filepath.Join(t.TempDir(), "log")
		one, release := hold(t, url, slices.Concat(strings.Fields(fair), []string{"--shared", "book"})...)
		var waiting []*process
		for i, flags := range []string{"", "--shared", "--shared", "--permits 2", "--shared", ""} {
			args := slices.Concat([]string{"run", "-q"}, strings.Fields(fair), strings.Fields(flags), []string{"book", "--", "sh", "-c", `echo "$0" >>"$1"`, "run " + flags, log})
			waiting = append(waiting, start(t, url, args...))
			awaitWaiters(t, url, "book", i+1)
		}
		release()
		one.must(0)
		for _, p := range waiting {
			p.must(0)
		}
		if got := string(must.Get(os.ReadFile(log))(t)); got != "run \nrun --shared\nrun --shared\nrun --permits 2\nrun --shared\nrun \n" {
			t.Errorf("%q: the runs came in the order %q", fair, got)
		}
	}
}

// Two that name the same locks in opposite orders never block each other for ever.
func TestOppositeOrders(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	const script = `n=0; while [ $n -lt 8 ]; do "$SELF" run $NAMES -- true || exit 1; n=$((n+1)); done`
	var all []*process
	for _, names := range []string{"a b c", "c b a"} {
		p := command(t, url)
		p.Path, p.Args = "/bin/sh", []string{"sh", "-c", script}
		p.Env = append(p.Env, "NAMES="+names)
		p.begin()
		all = append(all, p)
	}
	for _, p := range all {
		p.must(0)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	const script = `printf '%s|' "$DISTLOCK_NAME" "$DISTLOCK_FENCE" "$DISTLOCK_OWNER" "$DISTLOCK_DEADLINE"; "$SELF" show --json "a b"`
	began := time.Now()
	p := command(t, url, "run", "--meta", "job=nightly", "z", "a b", "--", "sh", "-c", script)
	p.Env = append(p.Env, "DISTLOCK_NAME=outer", "DISTLOCK_FENCE=1")
	p.begin()
	parts := strings.SplitN(p.must(0).out.String(), "|", 5)
	var shown lockJSON
	must.OK(t, json.Unmarshal([]byte(parts[4]), &shown))
	if parts[0] != "z\na b" {
		t.Errorf("DISTLOCK_NAME %q", parts[0])
	}
	h := shown.Holders[0]
	if got := strings.Split(parts[1], "\n")[1]; got != *h.Fence {
		t.Errorf("DISTLOCK_FENCE %q; show says %s", parts[1], *h.Fence)
	}
	if got := strings.Split(parts[2], "\n")[1]; got != h.Owner {
		t.Errorf("DISTLOCK_OWNER %q; show says %q", parts[2], h.Owner)
	}
	deadline, err := time.Parse(stamp, parts[3])
	if left := deadline.Sub(began); err != nil || left < 28*time.Second || left > 30*time.Second+patience {
		t.Errorf("DISTLOCK_DEADLINE %q, %v: %v from the start", parts[3], err, left)
	}
	if h.Program != "sh" || *h.PID != p.Process.Pid || h.Meta["job"] != "nightly" {
		t.Errorf("the holder tells of itself: %+v", h)
	}
}

func TestStandardInput(t *testing.T) {
	t.Parallel()
	p := command(t, lockFile(t), "run", "pipe", "--", "cat")
	p.Stdin = strings.NewReader("through and through")
	p.begin()
	if got := p.must(0).out.String(); got != "through and through" {
		t.Errorf("got %q", got)
	}
}

func TestMinHold(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	finishWith(t, url, 0, "run", "--min-hold", "1h", "cron", "--", "true")
	finishWith(t, url, 75, "run", "--no-wait", "cron", "--", "true")
	finishWith(t, url, 0, "run", "--no-wait", "--skip-ok", "cron", "--", "false")
	finishWith(t, url, 0, "run", "--min-hold", "1ms", "cron2", "--", "true")
	finishWith(t, url, 0, "run", "--wait", "1m", "cron2", "--", "true")
}

// A command that was not started leaves no lock behind.
func TestFormatError(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	must.OK(t, os.WriteFile(script, []byte("no interpreter is named here\n"), 0o700))
	url := lockFile(t)
	finishWith(t, url, 126, "run", "x", "--", script)
	finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
}
