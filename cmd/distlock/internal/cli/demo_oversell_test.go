package cli

import (
	"strings"
	"testing"
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

// The demo fails where the lock does.
func TestOversellJudges(t *testing.T) {
	for name, test := range map[string]struct {
		fences []uint64
		fails  bool
	}{
		"kept":           {[]uint64{4, 5, 7, 8, 9}, false},
		"oversold":       {[]uint64{4, 5, 6, 7, 8, 9}, true},
		"undersold":      {[]uint64{4, 5, 6, 7}, true},
		"fence repeated": {[]uint64{4, 5, 6, 6, 7}, true},
		"fence falls":    {[]uint64{4, 5, 7, 6, 8}, true},
		"no fences":      {[]uint64{0, 0, 0, 0, 0}, true},
	} {
		var sales []sale
		for _, f := range test.fences {
			sales = append(sales, sale{Fence: f})
		}
		if err := judge(sales); (err != nil) != test.fails || err != nil && codeOf(err) != exitFailure {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A buyer that fails ends the demo with its reason, though others wait for it.
func TestOversellBuyerFails(t *testing.T) {
	_, err := (&app{}).trial(t.Context(), "bogus:x")
	if codeOf(err) != exitUsage || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "bogus") {
		t.Errorf("got %v", err)
	}
}

func TestOversellUnreachable(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--url", "redis://127.0.0.1:1")
	if code != exitUnreachable || out != "" || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
}
