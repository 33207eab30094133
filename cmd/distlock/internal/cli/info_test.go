package cli

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// memory returns the URL of a store of the test's own, in this process.
func memory() string { return "mem:" + driver.NewOwner() }

// tenant holds locks in the memory of the test, where the program sees them too.
func tenant(t *testing.T, url, pid string) *distlock.Client {
	t.Helper()
	meta := map[string]string{"host": "db1", "pid": pid, "program": "backup", "job": "nightly\n"}
	c := must.Get(distlock.Open(t.Context(), url, &distlock.Options{TTL: time.Hour, Meta: meta}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

var (
	durations = regexp.MustCompile(`\b(\d+(\.\d+)?(h|ms|µs|m|s))+`)
	instants  = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`)
	numbers   = regexp.MustCompile(`("(held_ms|left_ms)": )\d+`)
	owners    = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	fences    = regexp.MustCompile(`\b\d{12,}\b`)
	blanks    = regexp.MustCompile(`  +`)
)

// golden takes from an output what changes from run to run, and the width of columns
// with it.
func golden(s string) string {
	s = instants.ReplaceAllString(s, "TIME")
	s = numbers.ReplaceAllString(s, "${1}MS")
	s = owners.ReplaceAllString(s, "OWNER")
	s = fences.ReplaceAllString(s, "FENCE")
	s = durations.ReplaceAllString(s, "DUR")
	if !strings.HasPrefix(s, "[") && !strings.HasPrefix(s, "{") {
		s = blanks.ReplaceAllString(s, "  ")
	}
	return s
}

func wantOutput(t *testing.T, want string, args ...string) {
	t.Helper()
	wantResult(t, 0, want, args...)
}

func wantResult(t *testing.T, wanted int, want string, args ...string) {
	t.Helper()
	code, out, err := inProcess(args...)
	if code != wanted || err != "" {
		t.Fatalf("%q: exit code %d, %s", args, code, err)
	}
	if got := golden(out); got != strings.TrimPrefix(want, "\n") {
		t.Errorf("%q: got\n%s\nwant\n%s", args, got, want)
	}
}

// A column that the server does not tell has a dash, whatever the column is.
func TestLsOfWhatIsNotKnown(t *testing.T) {
	var b strings.Builder
	nameless := distlock.Holder{Mode: distlock.Exclusive, Held: -1, Left: -1}
	must.OK(t, infoTable([]distlock.Info{{Name: "x", Holders: []distlock.Holder{nameless}, WaiterCount: -1}}, false).write(&b))
	_, line, _ := strings.Cut(strings.TrimSpace(b.String()), "\n")
	if got := strings.Join(strings.Fields(line), " "); got != "x exclusive - - - - - - -" {
		t.Errorf("the table: %s", got)
	}
	if !strings.Contains((&app{}).lsCommand().Long, "etcd and ZooKeeper do not record") {
		t.Error("the help does not say what the dash stands for")
	}
}

func TestLs(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	must.Get(c.Mutex("a:1").Lock(t.Context()))(t)
	must.Get(c.Mutex("tab\tand \x1b[Hhome").Lock(t.Context()))(t)
	book := c.RWMutex("b")
	must.Get(book.RLock(t.Context()))(t)
	must.Get(book.RLock(t.Context()))(t)
	wantOutput(t, `
NAME  MODE  FENCE  HELD  LEFT  HOST  PID  PROGRAM  WAITERS
a:1  exclusive  1  DUR  DUR  db1  17  backup  0
b  read  1  DUR  DUR  db1  17  backup  0
b  read  2  DUR  DUR  db1  17  backup  0
tab\tand \x1b[Hhome  exclusive  1  DUR  DUR  db1  17  backup  0
`, "--url", url, "ls")
	wantOutput(t, `
NAME  MODE  FENCE  HELD  LEFT  HOST  PID  PROGRAM  WAITERS
a:1  exclusive  1  DUR  DUR  db1  17  backup  0
`, "ls", "--url", url, "a:")
	wantOutput(t, `
[
  {
    "name": "a:1",
    "mode": "exclusive",
    "holders": [
      {
        "mode": "exclusive",
        "fence": "1",
        "owner": "OWNER",
        "since": "TIME",
        "held_ms": MS,
        "left_ms": MS,
        "host": "db1",
        "pid": 17,
        "program": "backup",
        "meta": {
          "job": "nightly\n"
        }
      }
    ],
    "waiters": [],
    "waiter_count": 0
  }
]
`, "ls", "--url", url, "--json", "a:")
}

func TestLsOfNothing(t *testing.T) {
	code, out, err := inProcess("--url", "mem:nothing", "ls")
	if code != 0 || out != "" || err != "distlock: no locks are held\n" {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
	code, out, err = inProcess("--url", "mem:nothing", "ls", "x")
	if code != 0 || out != "" || err != "distlock: no locks are held under \"x\"\n" {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
	wantOutput(t, "[]\n", "--url", "mem:nothing", "ls", "--json")
}

func TestShow(t *testing.T) {
	url := memory()
	c, other := tenant(t, url, "17"), tenant(t, url, "18")
	gpu := c.Semaphore("gpu", 1, distlock.Fair())
	must.Get(gpu.Acquire(t.Context()))(t)
	enqueue(t, c, other)
	wantOutput(t, `
name  gpu
mode  counted
permits  1 of 1 taken
waiters  1

holder 1
  mode  counted
  fence  1
  since  TIME (DUR)
  left  DUR unless renewed
  host  db1
  pid  17
  program  backup
  job  nightly\n
  owner  OWNER

waiter 1
  mode  counted
  since  TIME (DUR)
  left  DUR unless renewed
  host  db1
  pid  18
  program  backup
  job  nightly\n
  owner  OWNER
`, "--url", url, "show", "gpu")
	wantOutput(t, `
{
  "name": "gpu",
  "mode": "counted",
  "limit": 1,
  "holders": [
    {
      "mode": "counted",
      "fence": "1",
      "owner": "OWNER",
      "since": "TIME",
      "held_ms": MS,
      "left_ms": MS,
      "host": "db1",
      "pid": 17,
      "program": "backup",
      "meta": {
        "job": "nightly\n"
      }
    }
  ],
  "waiters": [
    {
      "mode": "counted",
      "fence": null,
      "owner": "OWNER",
      "since": "TIME",
      "held_ms": MS,
      "left_ms": MS,
      "host": "db1",
      "pid": 18,
      "program": "backup",
      "meta": {
        "job": "nightly\n"
      }
    }
  ],
  "waiter_count": 1
}
`, "--url", url, "show", "--json", "gpu")
}

// enqueue queues other for the permit that c holds.
func enqueue(t *testing.T, c, other *distlock.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	t.Cleanup(func() { cancel(); <-gone })
	go func() {
		defer close(gone)
		_, _ = other.Semaphore("gpu", 1, distlock.Fair()).Acquire(ctx)
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		info, err := c.Inspect(t.Context(), "gpu")
		if err != nil || time.Now().After(deadline) {
			t.Fatal("there are no waiters: ", err)
		}
		if info.WaiterCount == 1 {
			return
		}
	}
}

func TestShowFree(t *testing.T) {
	wantResult(t, exitFailure, "name  free one\nmode  free\nwaiters  0\n", "--url", "mem:free", "show", "free one")
	wantResult(t, exitFailure, `
{
  "name": "free one",
  "mode": "free",
  "holders": [],
  "waiters": [],
  "waiter_count": 0
}
`, "--url", "mem:free", "show", "--json", "free one")
}

func TestWhatIsUnderAnotherPrefix(t *testing.T) {
	for _, test := range []struct {
		key, name, ours string
		want            bool
	}{
		{"locks:report", "report", "", true},
		{"locks:report", "report", "app:", true},
		{"report", "report", "app:", true},
		{"report", "report", "", false}, // it is the lock itself
		{"app:report", "report", "app:", false},
		{"app:old:report", "report", "app:", false}, // another name here
		{"banana", "a", "", false},
		{"nightly-report", "report", "app:", false},
		{"locks:report", "", "app:", true},
		{"app:report", "", "app:", false},
		{"locks:report", "", "", false},
	} {
		expect.Equal(t, underAnother(test.key, test.name, test.ours), test.want, fmt.Sprintf("%+v", test))
	}
}

// Programs with different prefixes do not exclude each other; ls and show hint at it where they find nothing.
func TestHintAtOtherPrefixes(t *testing.T) {
	srv := testserver.Redis(t)
	c := must.Get(distlock.Open(t.Context(), srv.URL()+"?prefix=locks:", nil))(t)
	t.Cleanup(func() { expect.OK(t, c.Close(), "Close") })
	must.Get(c.Mutex("report").TryLock(t.Context()))(t)
	for _, prefix := range []string{"", "?prefix=app:"} {
		for _, args := range [][]string{{"ls", "x"}, {"show", "report"}} {
			_, _, err := inProcess(append([]string{"--url", srv.URL() + prefix}, args...)...)
			if hinted := strings.Contains(err, `"locks:report"`); hinted != (prefix != "" || args[0] == "show") || strings.Count(err, "\n") > 1 {
				t.Errorf("%q with the prefix %q: %q", args, prefix, err)
			}
		}
	}
	for _, args := range [][]string{{"ls", "-o", "name", "x"}, {"show", "other"}, {"show", "--json", "report2"}} {
		if _, _, err := inProcess(append([]string{"--url", srv.URL() + "?prefix=locks:"}, args...)...); strings.Contains(err, "prefixes") {
			t.Errorf("%q: %q", args, err)
		}
	}
}

func TestUnlock(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	book := c.RWMutex("book")
	one := must.Get(book.RLock(t.Context()))(t)
	must.Get(book.RLock(t.Context()))(t)
	wantOutput(t, `
broke book: read hold, fence 1, held by "backup" pid 17 on db1 for DUR
broke book: read hold, fence 2, held by "backup" pid 17 on db1 for DUR
`, "--url", url, "unlock", "--force", "book")
	if err := one.Unlock(t.Context()); err == nil {
		t.Error("the holder's lock was not broken")
	}
	code, out, err := inProcess("--url", url, "unlock", "--force", "book")
	if code != 1 || out != "" || err != "distlock: unlock: \"book\" is not held\n" {
		t.Errorf("of a free lock: got %d, %q, %q", code, out, err)
	}
}

func TestUnlockAsks(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	asked := make(chan *distlock.Lease, 1)
	lease := must.Get(c.Mutex("book", distlock.Revocable(func(l *distlock.Lease) { asked <- l })).Lock(t.Context()))(t)
	must.Get(c.Mutex("silent").Lock(t.Context()))(t)
	wantOutput(t, "\nasked book: exclusive hold, fence 1, held by \"backup\" pid 17 on db1 for DUR\n", "--url", url, "unlock", "--ask", "book")
	if got := <-asked; got != lease || lease.Err() != nil {
		t.Errorf("asked %v, which is %v", got, lease.Err())
	}
	for name, says := range map[string]string{
		"free":   "unlock: \"free\" is not held",
		"silent": "unlock: a holder of \"silent\" does not listen to requests",
	} {
		if code, out, err := inProcess("--url", url, "unlock", "--ask", name); code != 1 || out != "" || err != "distlock: "+says+"\n" {
			t.Errorf("%s: got %d, %q, %q", name, code, out, err)
		}
	}
}

// A server that can't revoke is distinguished from a holder that ignores it.
func TestUnlockAsksInVain(t *testing.T) {
	url := lockFile(t)
	p, release := hold(t, url, "x")
	code, out, err := inProcess("--url", url, "unlock", "--ask", "x")
	if code != exitUsage || out != "" || !strings.Contains(err, "can't ask holders") {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
	release()
	p.must(0)
}

// Unlock --force leaves a value alone that distlock can't tell to be a lock, and names what
// would break it.
func TestUnlockOfForeignValues(t *testing.T) {
	srv := testserver.Redis(t)
	url := srv.URL() + "?prefix=app:"
	set := func(args ...string) {
		t.Helper()
		must.Get(srv.Do(append([]string{"SET", "app:session:abc"}, args...)...))(t)
	}
	value := func() any {
		t.Helper()
		v := must.Get(srv.Do("GET", "app:session:abc"))(t)
		return v
	}
	set("x", "EX", "100")
	code, out, err := inProcess("--url", url, "unlock", "--force", "session:abc")
	if code != exitUsage || out != "" || !strings.Contains(err, `"session:abc"`) || !strings.Contains(err, "--foreign") || value() != "x" {
		t.Errorf("a string with a TTL: exit code %d, %q, %q; the value is %v", code, out, err, value())
	}
	code, out, err = inProcess("--url", url, "unlock", "--force", "--foreign", "session:abc")
	if code != 0 || !strings.HasPrefix(out, "broke session:abc: exclusive hold") || err != "" || value() != nil {
		t.Errorf("with --foreign: exit code %d, %q, %q; the value is %v", code, out, err, value())
	}
	set("x")
	for _, flags := range [][]string{{"--force"}, {"--force", "--foreign"}} {
		code, out, err = inProcess(append([]string{"--url", url, "unlock", "session:abc"}, flags...)...)
		if code != exitUsage || out != "" || !strings.Contains(err, `"app:session:abc"`) || !strings.Contains(err, "?prefix=") || value() != "x" {
			t.Errorf("a string without a TTL, %q: exit code %d, %q, %q; the value is %v", flags, code, out, err, value())
		}
	}
	code, _, err = inProcess("--url", url, "unlock", "--ask", "--foreign", "session:abc")
	if code != exitUsage || !strings.Contains(err, "--foreign goes with --force") {
		t.Errorf("--ask --foreign: exit code %d, %q", code, err)
	}
}

// Show says that a value is foreign, and ls does not list it.
func TestShowOfForeignValues(t *testing.T) {
	srv := testserver.Redis(t)
	must.Get(srv.Do("SET", "token", "\x1b[H", "EX", "100"))(t)
	wantOutput(t, `
name  token
mode  exclusive
waiters  -

holder 1
  mode  exclusive
  left  DUR unless renewed
  host  -
  pid  -
  program  -
  foreign  another library's lock, or other data
  owner  \x1b[H
`, "--url", srv.URL(), "show", "token")
	code, out, _ := inProcess("--url", srv.URL(), "show", "--json", "token")
	if code != 0 || !strings.Contains(out, `"foreign": true`) {
		t.Errorf("exit code %d, %s", code, out)
	}
	wantOutput(t, "[]\n", "--url", srv.URL(), "ls", "--json")
}
