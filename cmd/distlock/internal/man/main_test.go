package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// Every command has a page, with its tables of exit codes as they are in the help.
func TestPages(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, write(dir))
	for page, want := range map[string]string{
		"distlock":               "\\fBdistlock-run(1)\\fP",
		"distlock-run":           "\n75   busy: another client holds the lock",
		"distlock-elect":         "\n127  the command was not found",
		"distlock-lock":          "\n76   the lock was lost before its owner was printed",
		"distlock-demo-oversell": "without a lock",
		"distlock-completion":    "zsh",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page+".1"))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v; want %q in it:\n%s", page, err, want, text)
		}
	}
}
