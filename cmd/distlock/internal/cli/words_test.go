package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/must"
)

// What another client chose moves no terminal's cursor, also in JSON.
func TestJSONIsPlain(t *testing.T) {
	var out strings.Builder
	must.OK(t, writeJSON(&out, []string{"a\u009b2J\u007f\x1b\né世"}))
	if want := "[\n  \"a\\u009b2J\\u007f\\u001b\\né世\"\n]\n"; out.String() != want {
		t.Errorf("got %q; want %q", out.String(), want)
	}
}

// A check that a signal ended did not run out of time.
func TestAnInterruptedCheckSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := runCheck(ctx, drivertest.Checks()[0], nil); r.Result != resultNotRun || r.Reason != reasonInterrupted {
		t.Errorf("got %+v", r)
	}
}

// Two scheduled jobs that share a name by mistake are told: one of them might never run.
func TestJobsThatShareAName(t *testing.T) {
	url := lockFile(t)
	start(t, url, "cron", "--every", "1h", "nightly", "--", "true").must(0)
	if p := start(t, url, "cron", "--every", "1h", "nightly", "--", "true").must(0); p.errors.String() != "" {
		t.Errorf("the same job: %s", p.errors.String())
	}
	if p := start(t, url, "cron", "--every", "1h", "nightly", "--", "echo").must(0); !strings.Contains(p.errors.String(), `skipped: "true" of this host has lock "nightly"`) || p.out.String() != "" {
		t.Errorf("another job: %s%s", p.errors.String(), p.out.String())
	}
	host, _ := os.Hostname()
	for _, test := range []struct{ verb, host, program, want string }{
		{"cron", host, "b", "b"}, {"cron", host, "a", ""}, {"cron", "elsewhere", "b", ""}, {"cron", host, "", ""}, {"run", host, "b", ""},
	} {
		held := &distlock.HeldError{Holders: []distlock.Holder{{Meta: map[string]string{"host": test.host, "program": test.program}}}}
		o := &runOptions{verb: test.verb, names: []string{"x"}, command: []string{"/bin/a"}}
		if got := o.namesake(fmt.Errorf("lock: %w", held)); got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}
