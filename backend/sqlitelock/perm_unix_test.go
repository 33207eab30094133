//go:build unix

package sqlitelock

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(dir, "closed")
	path := filepath.Join(closed, "locks.db")
	if err := os.Mkdir(closed, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := connect(t, path).Close(); err != nil {
		t.Fatal(err)
	}
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
		if err := os.Chmod(path, c.file); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(closed, c.dir); err != nil {
			t.Fatal(err)
		}
		answer := spawn(t, "open-as-nobody", c.path).line(t)
		if err := os.Chmod(closed, 0o755); err != nil {
			t.Fatal(err)
		}
		var invalid bool
		if _, err := fmt.Sscan(answer, &invalid); err != nil || !invalid || !strings.Contains(answer, "permission") {
			t.Errorf("%s: %q; want ErrInvalid with the word permission", c.what, answer)
		}
	}
}
