//go:build unix

package cli

import (
	"os"
	"strings"
	"testing"
	"time"

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

// A run under a lock does not wait for its own end.
func TestRunWithinItself(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	for _, outer := range []string{"", "--shared "} {
		p := finishWith(t, url, exitUsage, "run", "-q", "outer", "--", "sh", "-c",
			`"$SELF" run `+outer+`door -- "$SELF" run -q other door -- true`)
		if text := p.errors.String(); !strings.Contains(text, `lock "door" is held by the outer distlock run`) {
			t.Errorf("%q: got %q", outer, text)
		}
		// Asked not to wait it is busy, as for all others.
		finishWith(t, url, exitBusy, "run", "-q", "outer", "--", "sh", "-c",
			`"$SELF" run `+outer+`door -- "$SELF" run --no-wait door -- true`)
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
}
