//go:build unix

package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

var oneOwner = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n$`)

// lockIn acquires a lock by a process that has ended, and returns its owner.
func lockIn(t *testing.T, url string, flags ...string) string {
	t.Helper()
	p := start(t, url, append([]string{"lock", "--ttl", "1h", "x"}, flags...)...).must(0)
	if !oneOwner.MatchString(p.out.String()) || p.errors.String() != "" {
		t.Fatalf("got %q, %q; want an owner", p.out.String(), p.errors.String())
	}
	return strings.TrimSpace(p.out.String())
}

// with runs a command with an owner in the environment.
func with(t *testing.T, owner, url string, args ...string) *process {
	t.Helper()
	p := command(t, url, args...)
	p.Env = append(p.Env, ownerVariable+"="+owner)
	p.begin()
	p.code()
	return p
}

// wantEnd wants an exit code, a message, and that the owner is in no output.
func wantEnd(t *testing.T, p *process, owner string, code int, says string) {
	t.Helper()
	all := p.out.String() + p.errors.String()
	if got := p.ProcessState.ExitCode(); got != code || !strings.Contains(all, says) || says == "" && all != "" || strings.Contains(all, owner) {
		t.Errorf("%v: got %d, %q; want %d, %q, without the owner", p.Args[1:], got, all, code, says)
	}
}

func TestLockRenewRelease(t *testing.T) {
	url := lockFile(t)
	owner := lockIn(t, url)
	wantEnd(t, finish(t, url, "lock", "--no-wait", "--ttl", "1h", "x"), owner, exitBusy, "held by")
	wantEnd(t, with(t, owner, url, "renew", "--ttl", "2h", "x"), owner, 0, "")
	if out := start(t, url, "show", "x").must(0).out.String(); !regexp.MustCompile(`left +1h59m|left +2h0m`).MatchString(out) {
		t.Errorf("after the renewal: %s", out)
	}
	wantEnd(t, with(t, owner, url, "renew", "--ttl", "1s", "x"), owner, 0, "")
	other := strings.Repeat("0", 8) + owner[8:]
	wantEnd(t, with(t, other, url, "release", "x"), other, exitLost, "is not held by this owner")
	wantEnd(t, with(t, owner, url, "release", "x"), owner, 0, "")
	wantEnd(t, with(t, owner, url, "release", "x"), owner, exitLost, "is not held by this owner")
	wantEnd(t, with(t, owner, url, "renew", "--ttl", "1h", "x"), owner, exitLost, "is not held by this owner")
	successor := lockIn(t, url)
	wantEnd(t, with(t, owner, url, "release", "x"), owner, exitLost, "is not held by this owner")
	wantEnd(t, with(t, successor, url, "release", "x"), successor, 0, "")
}

// The owner's file is only for its user, and release removes it.
func TestLockWithAnOwnerFile(t *testing.T) {
	url, file := lockFile(t), filepath.Join(t.TempDir(), "owner")
	must.OK(t, os.WriteFile(file, []byte("stale\n"), 0o644))
	p := start(t, url, "lock", "--ttl", "1h", "--owner-file", file, "--permits", "2", "x").must(0)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file: %v, %v", info, err)
	}
	text := must.Get(os.ReadFile(file))(t)
	if !oneOwner.Match(text) || !regexp.MustCompile(`^\d+\n$`).MatchString(p.out.String()) {
		t.Errorf("the file has %q, the output is %q; want an owner and a fence", text, p.out.String())
	}
	owner := strings.TrimSpace(string(text))
	wantEnd(t, finish(t, url, "renew", "--ttl", "1h", "--owner-file", file, "x"), owner, 0, "")
	must.OK(t, os.Chmod(file, 0o640))
	wantEnd(t, finish(t, url, "release", "--owner-file", file, "x"), owner, exitUsage, "mode 0640")
	must.OK(t, os.Chmod(file, 0o600))
	wantEnd(t, finish(t, url, "release", "--owner-file", file, "x"), owner, 0, "")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// An owner's file replaces no device, pipe or link, and a release of another lock leaves it.
func TestOwnerFileIsKept(t *testing.T) {
	url, dir := lockFile(t), t.TempDir()
	file, link, fifo := filepath.Join(dir, "owner"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must.OK(t, cmp.Or(os.Symlink(file, link), unix.Mkfifo(fifo, 0o600)))
	for _, other := range []string{dir, link, fifo} {
		wantEnd(t, finish(t, url, "lock", "--ttl", "1h", "--owner-file", other, "x"), "\n\n", exitUsage, "no regular file")
	}
	finish(t, url, "lock", "--ttl", "1h", "--owner-file", file, "x")
	owner := strings.TrimSpace(string(must.Get(os.ReadFile(file))(t)))
	wantEnd(t, finish(t, url, "release", "--owner-file", file, "y"), owner, exitLost, "is not held by this owner")
	wantEnd(t, finish(t, url, "release", "--owner-file", file, "x"), owner, 0, "")
}

// A lock whose owner can't be written is released.
func TestLockWithoutAPlaceForItsOwner(t *testing.T) {
	url := lockFile(t)
	p := finish(t, url, "lock", "--ttl", "1h", "--owner-file", filepath.Join(t.TempDir(), "no", "owner"), "x")
	wantEnd(t, p, "\n\n", exitFailure, "can't write the owner")
	wantEnd(t, finish(t, url, "ls"), "\n\n", 0, "no locks are held")
}

func TestLockUsage(t *testing.T) {
	url := lockFile(t)
	unset(t, ownerVariable)
	for args, want := range map[string]string{
		"lock x":                              "no --ttl",
		"lock --ttl 1m":                       "want the name of one lock",
		"lock --ttl 1m x y":                   "want the name of one lock",
		"renew x":                             "no --ttl",
		"lock --ttl 1m --wait 1s --no-wait x": "lock: --wait and --no-wait",
		"release x":                           "no owner",
		"release --owner-file /none x":        "no such file",
	} {
		code, out, err := inProcess(append([]string{"--url", url}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(err, want) {
			t.Errorf("%s: got %d, %q, %q", args, code, out, err)
		}
	}
	t.Setenv(ownerVariable, "one\ntwo")
	if code, _, err := inProcess("--url", url, "release", "x"); code != exitUsage || !strings.Contains(err, "has 2 owners") {
		t.Errorf("two owners: got %d, %q", code, err)
	}
}

// The script of the documents: its trap releases the lock, however the script ends.
func TestLockInAScript(t *testing.T) {
	script := string(must.Get(os.ReadFile("../../../../examples/scripts/deploy.sh"))(t))
	for step, code := range map[string]string{"true": "0", "exit 3": "3"} {
		url := lockFile(t)
		dir := t.TempDir()
		for name, text := range map[string]string{
			"distlock": "exec \"$SELF\" \"$@\"",
			"build":    "distlock ls -o name",
			"upload":   step,
		} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		}
		p := command(t, url)
		p.Path, p.Args = "/bin/sh", []string{"sh", "-c", "PATH=" + dir + ":$PATH\ncd " + dir + "\n" + script + "\n"}
		p.begin()
		if got := p.code(); got != int(code[0]-'0') || p.out.String() != "deploy:web\n" {
			t.Errorf("%s: exit code %d, %q, %q", step, got, p.out.String(), p.errors.String())
		}
		wantEnd(t, finish(t, url, "ls"), "\n\n", 0, "no locks are held")
	}
}

// A lock whose owner nobody reads is released.
func TestLockIntoAClosedPipe(t *testing.T) {
	url := lockFile(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	p := command(t, url, "lock", "--ttl", "1h", "x")
	p.Stdout = w
	p.begin()
	w.Close()
	if code := p.code(); code <= 0 {
		t.Errorf("it ended with %d; want an error", code)
	}
	finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
}

// The next holder may have written its owner to the same file before the lock's release returned.
func TestReleaseRemovesItsOwnFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "owner")
	for _, c := range []struct {
		text string
		left bool
	}{{"mine\n", false}, {"the next one's\n", true}} {
		must.OK(t, writePrivate(file, c.text))
		expect.OK(t, removeOwner(file, "mine"))
		if text, _ := os.ReadFile(file); (string(text) == c.text) != c.left {
			t.Errorf("the file of %q has %q", c.text, text)
		}
	}
}
