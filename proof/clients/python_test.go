//go:build linux

package clients

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
)

// pythonTests returns the command of the tests of the client for Python: of some files, or of all but the long ones.
func pythonTests(tb testing.TB, files ...string) *exec.Cmd {
	tb.Helper()
	cmd := command(tb, "python3", append([]string{"-W", "error", filepath.Join(clients, "python", "tests")}, files...)...)
	cmd.Env = append(cmd.Env, "DISTLOCK_COMMAND="+distlockCommand(tb))
	return cmd
}

// Those of the client's own tests that take long: faults, a thousand leases, the package in an empty environment.
func TestLongPython(t *testing.T) {
	t.Parallel()
	expect.OK(t, run(pythonTests(t, "long_faults.py")))
}
