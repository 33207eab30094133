package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestItFailsWithoutAFolder(t *testing.T) {
	exampletest.Fails(t, "no such file", "TMPDIR=/nonexistent")
}

// Each half shows its sales, and the demo says what to do next.
func TestBothHalves(t *testing.T) {
	program := filepath.Join(t.TempDir(), "oversell")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	without, with, _ := strings.Cut(out.String(), "With a lock:")
	if !strings.Contains(without, "SOLD BEFORE") || strings.Contains(with, "SOLD BEFORE") || strings.Count(with, "fence ") != 6 || !strings.Contains(with, "Next: ") {
		t.Errorf("got\n%s", out.String())
	}
}
