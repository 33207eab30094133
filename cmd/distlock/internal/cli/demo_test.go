package cli

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestOversellJSON(t *testing.T) {
	unset(t, urlVariable)
	code, out, err := inProcess("demo", "oversell", "--json", "--think", "20ms")
	m := regexp.MustCompile(`^\{"with_lock":\{"stock":5,"sold":5,"oversold":0,"fences_increasing":true\},` +
		`"without_lock":\{"stock":5,"sold":(\d+),"oversold":(\d+),"fences_increasing":false\}\}\n$`).FindStringSubmatch(out)
	if code != 0 || err != "" || m == nil {
		t.Fatalf("got %d, %q, %q", code, out, err)
	}
	sold, _ := strconv.Atoi(m[1])
	oversold, _ := strconv.Atoi(m[2])
	if oversold < 1 || sold != 5+oversold {
		t.Errorf("without a lock: %s", out)
	}
}

// Each sale is a line, with the fence that came with the lock.
func TestOversellText(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--url", lockFile(t), "--stock", "3", "--think", "20ms")
	if code != 0 || err != "" {
		t.Fatalf("got %d, %q, %q", code, out, err)
	}
	without, with, _ := strings.Cut(out, "With a lock:")
	if !strings.Contains(without, "SOLD BEFORE") || strings.Contains(without, "fence ") {
		t.Errorf("without a lock:\n%s", without)
	}
	for _, want := range []string{"item 3   fence ", "item 2   fence ", "item 1   fence ", "3 sold, ", "distlock demo serve"} {
		if strings.Count(with, want) != 1 || strings.Contains(with, "SOLD BEFORE") {
			t.Errorf("with a lock, %q:\n%s", want, with)
		}
	}
}

// With --local, no server is asked.
func TestOversellLocal(t *testing.T) {
	t.Setenv(urlVariable, "redis://127.0.0.1:1")
	if code, _, err := inProcess("demo", "oversell", "--local", "--stock", "1", "--processes", "1"); code != 0 || err != "" {
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
		"kept":           {[]uint64{4, 5}, false},
		"oversold":       {[]uint64{4, 5, 6}, true},
		"undersold":      {[]uint64{4}, true},
		"fence repeated": {[]uint64{4, 4}, true},
		"fence falls":    {[]uint64{5, 4}, true},
		"no fences":      {[]uint64{0, 0}, true},
	} {
		s := &shop{}
		for _, f := range test.fences {
			s.sales = append(s.sales, sale{Fence: f})
		}
		if err := s.tally(2).judge(); (err != nil) != test.fails || err != nil && codeOf(err) != exitFailure {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A buyer that fails ends the demo with its reason, though others wait for it.
func TestOversellBuyerFails(t *testing.T) {
	o := &demoOptions{stock: 2, processes: 2}
	_, err := o.trial(t.Context(), "bogus:x", func(string, ...any) {})
	if codeOf(err) != exitUsage || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "bogus") {
		t.Errorf("got %v", err)
	}
}

func TestOversellUnreachable(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--json", "--url", "redis://127.0.0.1:1", "--stock", "2", "--processes", "2")
	if code != exitUnreachable || out != "" || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
}
