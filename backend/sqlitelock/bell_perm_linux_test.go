package sqlitelock

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The bell has the permissions of the database, whatever the umask: else only some of
// those who share the database could open it.
func TestBellIsLikeTheDatabase(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	path := filepath.Join(t.TempDir(), "locks.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	connect(t, path)
	fi, err := os.Stat(path + "-bell")
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("bell: %v, %v", fi.Mode(), err)
	}
}

// A bell that can't be opened makes waiters poll, and is no reason to fail.
func TestDeafBell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	if err := os.Mkdir(path+"-bell", 0o700); err != nil {
		t.Fatal(err)
	}
	b := connect(t, path)
	r := request("x", 1, long)
	take(t, b, r)
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Error(err)
	}
}
