package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
)

// Off a terminal a wait says what it waits for, at first and then now and then.
func TestReportsOffTheTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := must[*distlock.Client](t)(distlock.New(memlock.New(), &distlock.Options{Meta: map[string]string{"program": "backup"}}))
		defer c.Close()
		lease := must[*distlock.Lease](t)(c.Mutex("door").Lock(t.Context()))
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

// While the server can't be reached that is what is waited for, without its password.
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
