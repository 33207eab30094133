package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestLongDocumentIsWhatTheSimulatorSays(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other processors round differently")
	}
	files := must.Get(document())(t)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("docs/%s differs: run go run ./sim/scale in proof", name)
		}
	}
}

// TestDocumentHasTheTextOfTheTemplate finds at once a sentence that was changed in only one of the two.
func TestDocumentHasTheTextOfTheTemplate(t *testing.T) {
	file := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "docs", "scale.md")))(t)
	rest := string(file)
	for _, want := range regexp.MustCompile(`\{\{[^}]*\}\}`).Split(text, -1) {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("docs/scale.md lacks this text of scale.md.tmpl: %q", want)
		}
		rest = after
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", .001: "< 0.01", .0123: "0.012", .5: "0.5", 1.25: "1.3", 9.96: "10", 12.4: "12", 1234: "1200", 9990: "10 k", 99_400: "99 k",
		99_600: "100 k", 1_000_000: "1 M", 2_560_000: "2.6 M",
	} {
		expect.Equal(t, number(v), want, "number", v)
	}
}
