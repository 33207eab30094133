package distlock_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftBehind(); left != "" && code == 0 {
		fmt.Println("goroutines left behind:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// leftBehind waits for the goroutines of the tests to end, and returns the remaining ones.
func leftBehind() string {
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
		buf := make([]byte, 1<<20)
		left = left[:0]
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "distlock") && !strings.Contains(g, "TestMain") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// The core, package driver, the suite and the combinators import no other module. Neither do their
// tests.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	const module = "github.com/distlock/distlock"
	packages := []string{".", "./driver", "./drivertest", "./backend/memlock", "./backend/quorum", "./backend/shard"}
	args := append([]string{"list", "-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, packages...)
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	names := strings.Fields(string(out))
	if len(names) < len(packages) {
		t.Fatalf("go list names %v", names)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, module) && !strings.HasPrefix(name, "[") {
			t.Errorf("%s is neither of the standard library nor of %s", name, module)
		}
	}
}
