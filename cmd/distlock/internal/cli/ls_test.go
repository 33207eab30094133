package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestLsFormats(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	must.Get(c.Mutex("a:1").Lock(t.Context()))(t)
	must.Get(c.Semaphore("gpu", 2).Acquire(t.Context()))(t)
	wantOutput(t, "a:1\ngpu\n", "--url", url, "ls", "-o", "name")
	wantOutput(t, `
NAME  MODE  FENCE  HELD  LEFT  HOST  PID  PROGRAM  WAITERS  PERMITS  META
a:1  exclusive  1  DUR  DUR  db1  17  backup  0  -  job=nightly\n
gpu  counted  1  DUR  DUR  db1  17  backup  0  2  job=nightly\n
`, "--url", url, "ls", "-o", "wide")
	_, short, _ := inProcess("--url", url, "ls", "--json")
	_, long, _ := inProcess("--url", url, "ls", "-o", "json")
	if golden(short) != golden(long) || !strings.HasPrefix(long, "[\n") {
		t.Errorf("--json: %s\n-o json: %s", short, long)
	}
	for args, want := range map[string]string{
		"--json -o wide": "--json and -o wide exclude each other",
		"--every 1s":     "--every goes with --watch",
		"-o yaml":        "want table, wide, json or name",
		"--sort size":    "want name, held, waiting or left",
	} {
		code, out, err := inProcess(append([]string{"--url", url, "ls"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(err, want) {
			t.Errorf("%s: got %d, %q, %q", args, code, out, err)
		}
	}
}

func TestLsOrders(t *testing.T) {
	holder := func(held, left time.Duration) []distlock.Holder {
		return []distlock.Holder{{Held: 1, Left: 9 * time.Hour}, {Held: held, Left: left}}
	}
	infos := []distlock.Info{
		{Name: "a", Holders: []distlock.Holder{{Held: -1, Left: -1}}, WaiterCount: -1},
		{Name: "b", Holders: holder(2*time.Minute, 3*time.Minute), WaiterCount: 1},
		{Name: "c", Holders: holder(3*time.Minute, 2*time.Minute), WaiterCount: 3},
		{Name: "d", WaiterCount: 2},
	}
	for by, want := range map[string]string{"name": "abcd", "held": "cbad", "left": "cbad", "waiting": "cdba"} {
		var got string
		sorted := append([]distlock.Info(nil), infos...)
		sortLocks(sorted, by)
		for _, info := range sorted {
			got += info.Name
		}
		if got != want {
			t.Errorf("by %s: got %s, want %s", by, got, want)
		}
	}
}

// Without a terminal, a list is printed when it has changed.
func TestLsWatch(t *testing.T) {
	url := lockFile(t)
	p, release := hold(t, url, "x")
	w := start(t, url, "ls", "--watch", "--every", "20ms", "-o", "name")
	w.out.await(t, "x\n")
	q, end := hold(t, url, "y")
	w.out.await(t, "x\n\nx\ny\n")
	release()
	p.must(0)
	w.out.await(t, "x\n\nx\ny\n\ny\n")
	must.OK(t, w.Process.Signal(os.Interrupt))
	w.must(0)
	end()
	q.must(0)
	if got := w.out.String(); got != "x\n\nx\ny\n\ny\n" {
		t.Errorf("got %q; want one list for each change", got)
	}
}

// Names complete for each command that takes some, and files after --.
func TestCompletionOfNames(t *testing.T) {
	url := memory()
	c := tenant(t, url, "17")
	for _, name := range []string{"deploy:web", "deploy:api", "deploy:\nx", "other"} {
		must.Get(c.Mutex(name).Lock(t.Context()))(t)
	}
	for args, want := range map[string]string{
		"ls deploy:":               "deploy:api\ndeploy:web\n:4\n",
		"show dep":                 "deploy:api\ndeploy:web\n:4\n",
		"show other dep":           ":4\n",
		"unlock --ask o":           "other\n:4\n",
		"leader o":                 "other\n:4\n",
		"elect o":                  "other\n:4\n",
		"run other deploy:w":       "deploy:web\n:4\n",
		"run other -- deploy:w":    ":0\n",
		"run other -- cat deploy:": ":0\n",
		"ls --sort he":             "name\nheld\nwaiting\nleft\n:4\n",
	} {
		code, out, _ := inProcess(append([]string{"__complete", "--url", url}, strings.Fields(args)...)...)
		if code != 0 || out != want {
			t.Errorf("%s: got %d, %q; want %q", args, code, out, want)
		}
	}
	// A server that can't be reached costs a completion, and prints nothing.
	code, out, _ := inProcess("__complete", "--url", "redis://127.0.0.1:1", "show", "x")
	if code != 0 || out != ":4\n" {
		t.Errorf("without a server: got %d, %q", code, out)
	}
}
