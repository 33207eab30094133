package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
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
	for name, jobs := range map[string][3][]string{ // the first, the same again, and another
		"program":       {{"--", "true"}, {"--", "true", "today"}, {"--", "echo"}},
		"line":          {{"-c", "true; false || :"}, {"-c", "true; false || :"}, {"-c", "echo"}},
		"shell's line":  {{"--", "sh", "-c", "exit 0"}, {"-c", "exit 0"}, {"--", "sh", "-c", "echo"}},
		"another shell": {{"-c", "exit 0"}, {"--", "/bin/sh", "-c", "exit 0", "0"}, {"--", "bash", "-c", "exit 0"}},
	} {
		cron := func(job []string) string {
			p := start(t, url, slices.Concat([]string{"cron", "--every", "1h", name}, job)...).must(0)
			return p.errors.String() + p.out.String()
		}
		cron(jobs[0])
		expect.Equal(t, cron(jobs[1]), "", name+": the same job")
		if said := cron(jobs[2]); !strings.Contains(said, "skipped: another job of this host, ") || strings.Count(said, "\n") != 1 {
			t.Errorf("%s: another job: %s", name, said)
		}
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
