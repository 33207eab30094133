package cli

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/oversell"
)

// Each sale is a line, with the fence that came with the lock.
func TestOversell(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--url", lockFile(t))
	if code != 0 || err != "" {
		t.Fatalf("got %d, %q, %q", code, out, err)
	}
	without, with, _ := strings.Cut(out, "With a lock:")
	if !strings.Contains(without, "SOLD BEFORE") || strings.Contains(without, "fence ") || strings.Contains(without, " 0 too many") {
		t.Errorf("without a lock:\n%s", without)
	}
	for _, want := range []string{"item 5   fence ", "item 3   fence ", "item 1   fence ", "5 sold, ", "distlock demo serve"} {
		if strings.Count(with, want) != 1 || strings.Contains(with, "SOLD BEFORE") {
			t.Errorf("with a lock, %q:\n%s", want, with)
		}
	}
}

// With --local, no server is asked.
func TestOversellLocal(t *testing.T) {
	t.Setenv(urlVariable, "redis://127.0.0.1:1")
	if code, _, err := inProcess("demo", "oversell", "--local"); code != 0 || err != "" {
		t.Errorf("got %d, %q", code, err)
	}
	if code, _, err := inProcess("demo", "oversell", "--local", "--url", "redis://127.0.0.1:1"); code != exitUsage || !strings.Contains(err, "exclude each other") {
		t.Errorf("with --url: got %d, %q", code, err)
	}
}

// The demo ends with the code of its buyer, and with a failure where the lock does not work.
func TestOversellExitCodes(t *testing.T) {
	for want, err := range map[int]error{
		exitUsage:   demoError(&oversell.BuyerError{Code: exitUsage, Text: "distlock: bogus"}),
		exitFailure: demoError(oversell.ErrLock),
	} {
		if codeOf(err) != want || !strings.HasPrefix(err.Error(), "demo: ") {
			t.Errorf("got %v, code %d; want %d", err, codeOf(err), want)
		}
	}
}

func TestOversellUnreachable(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--url", "redis://127.0.0.1:1")
	if code != exitUnreachable || out != "" || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
}
