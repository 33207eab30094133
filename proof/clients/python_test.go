//go:build linux

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// pythonTests returns the command of the tests of the client for Python: of some files, or of all but the long ones.
func pythonTests(tb testing.TB, files ...string) *exec.Cmd {
	tb.Helper()
	cmd := command(tb, "python3", append([]string{"-W", "error", filepath.Join(clients, "python", "tests")}, files...)...)
	cmd.Env = append(cmd.Env, "DISTLOCK_COMMAND="+must.Get(buildCommand())(tb))
	return cmd
}

// buildCommand builds the command distlock once, for tests that start servers themselves. TestMain removes it.
var buildCommand = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "build", "-o", builtCommand(), "github.com/distlock/distlock/cmd/distlock").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return builtCommand(), err
})

func builtCommand() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("distlock-clients-%d", os.Getpid()))
}

// Those of the client's own tests that take long: faults, a thousand leases, the package in an empty environment.
func TestLongPython(t *testing.T) {
	t.Parallel()
	if out, err := pythonTests(t, "long_faults.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
