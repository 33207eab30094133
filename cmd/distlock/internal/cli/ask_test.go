//go:build unix

package cli

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// No server is needed to ask a holder in another process: the scheme asked keeps locks as
// sqlite does, and a file for each owner that was asked.
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

// A command that was asked for its lock is told to stop, has the lock for as long as
// that takes, and tells its own exit code.
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
		return ends(0, "unlock", "--ask", "x") && ends(0, "run", "--wait", "3s", "x", "--", "true")
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
