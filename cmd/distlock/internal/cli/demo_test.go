package cli

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestOversellJSON(t *testing.T) {
	unset(t, urlVariable)
	code, out, err := inProcess("demo", "oversell", "--json")
	m := regexp.MustCompile(`^\{"without_lock":\{"stock":50,"sold":(\d+),"oversold":(\d+)\},` +
		`"with_lock":\{"stock":50,"sold":50,"oversold":0,"fences_increasing":true\}\}\n$`).FindStringSubmatch(out)
	if code != 0 || err != "" || m == nil {
		t.Fatalf("got %d, %q, %q", code, out, err)
	}
	sold, _ := strconv.Atoi(m[1])
	oversold, _ := strconv.Atoi(m[2])
	if oversold < 1 || sold != 50+oversold {
		t.Errorf("without a lock: %s", out)
	}
}

func TestOversellText(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "held.svg")
	code, out, err := inProcess("demo", "oversell", "--url", lockFile(t), "--stock", "12", "--processes", "2", "--workers", "3", "--think", "1ms", "--svg", svg)
	if code != 0 || err != "" {
		t.Fatalf("got %d, %q, %q", code, out, err)
	}
	for _, want := range []string{"without a lock", "with a lock", "sold", "oversold", "p50", "p99", "fences increase"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	drawing, readErr := os.ReadFile(svg)
	if readErr != nil {
		t.Fatal(readErr)
	}
	// Background, legend, a bar for each sale, and for each buyer who found nothing.
	if n := countTags(t, drawing, "rect"); n != 1+2+12+6 {
		t.Errorf("the drawing has %d bars", n)
	}
}

// With --local, no server is asked.
func TestOversellLocal(t *testing.T) {
	t.Setenv(urlVariable, "redis://127.0.0.1:1")
	if code, _, err := inProcess("demo", "oversell", "--local", "--stock", "1", "--processes", "1", "--workers", "1"); code != 0 || err != "" {
		t.Errorf("got %d, %q", code, err)
	}
	if code, _, err := inProcess("demo", "oversell", "--local", "--url", "redis://127.0.0.1:1"); code != exitUsage || !strings.Contains(err, "exclude each other") {
		t.Errorf("with --url: got %d, %q", code, err)
	}
}

func countTags(t *testing.T, doc []byte, name string) (n int) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(string(doc))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == name {
			n++
		}
	}
}

// The demo fails where the lock does.
func TestOversellJudges(t *testing.T) {
	o := &demoOptions{stock: 2}
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
		a := &app{out: io.Discard, err: io.Discard}
		err := a.report(o, &trial{stock: 2}, &trial{stock: 2, fences: test.fences, took: time.Second})
		if (err != nil) != test.fails || err != nil && codeOf(err) != exitFailure {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOversellUnreachable(t *testing.T) {
	code, out, err := inProcess("demo", "oversell", "--json", "--url", "redis://127.0.0.1:1", "--stock", "2", "--processes", "2")
	if code != exitUnreachable || out != "" || strings.Count(err, "\n") != 1 {
		t.Errorf("got %d, %q, %q", code, out, err)
	}
}

func TestTick(t *testing.T) {
	for span, want := range map[time.Duration]time.Duration{
		time.Microsecond: time.Microsecond, 100 * time.Millisecond: 10 * time.Millisecond,
		190 * time.Millisecond: 20 * time.Millisecond, 6 * time.Second: 500 * time.Millisecond,
	} {
		if got := tick(span); got != want {
			t.Errorf("tick(%v) = %v; want %v", span, got, want)
		}
	}
}
