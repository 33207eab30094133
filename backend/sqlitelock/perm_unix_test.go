//go:build unix

package sqlitelock

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

const nobody = 65534

func init() {
	roles["open-as-nobody"] = func(args []string) error {
		if os.Getuid() == 0 {
			if err := syscall.Setuid(nobody); err != nil {
				return err
			}
		}
		return openRole(args)
	}
}

func TestNoPermission(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must.OK(t, os.Chmod(d, 0o755))
	}
	closed := filepath.Join(dir, "closed")
	path := filepath.Join(closed, "locks.db")
	must.OK(t, os.Mkdir(closed, 0o755))
	must.OK(t, connect(t, path).Close())
	for _, c := range []struct {
		what      string
		dir, file os.FileMode
		path      string
	}{
		{"read-only directory", 0o555, 0o444, filepath.Join(closed, "new.db")},
		{"read-only file", 0o555, 0o444, path},
		{"unreadable file", 0o555, 0o000, path},
		{"unreadable directory", 0o000, 0o444, path},
	} {
		must.OK(t, os.Chmod(path, c.file))
		must.OK(t, os.Chmod(closed, c.dir))
		answer := spawn(t, "open-as-nobody", c.path).line(t)
		must.OK(t, os.Chmod(closed, 0o755))
		var invalid bool
		if _, err := fmt.Sscan(answer, &invalid); err != nil || !invalid || !strings.Contains(answer, "permission") {
			t.Errorf("%s: %q; want ErrInvalid with the word permission", c.what, answer)
		}
	}
}
