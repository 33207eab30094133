package exampletest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// Each example is run in a way that fails, too: whoever copies it learns from its exit code.
func TestEachExampleFails(t *testing.T) {
	programs := must.Get(filepath.Glob("../../*/main.go"))(t)
	if len(programs) < 9 {
		t.Fatalf("found %q", programs)
	}
	for _, program := range programs {
		if test, err := os.ReadFile(strings.Replace(program, "main.go", "main_test.go", 1)); err != nil || !strings.Contains(string(test), "exampletest.Fails(") {
			t.Errorf("%s: no test runs it in a way that fails", filepath.Dir(program))
		}
	}
}
