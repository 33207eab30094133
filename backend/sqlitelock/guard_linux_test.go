package sqlitelock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// guards says that processes find those that use other files.
const guards = true

func init() {
	// mounted opens a file that is mounted by itself, as in a container.
	roles["mounted"] = func(args []string) error {
		if err := unix.Mount(args[0], args[1], "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return openRole(args[1:])
	}
	// scarce opens a file when no more descriptors are left.
	roles["scarce"] = func(args []string) error {
		limit := unix.Rlimit{Cur: 64, Max: 64}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		// Open fails at another step with each descriptor that is left.
		for left := range 4 {
			var files []*os.File
			for {
				f, err := os.Open(os.DevNull)
				if err != nil {
					break
				}
				files = append(files, f)
			}
			for _, f := range files[:left] {
				f.Close()
			}
			_, err := OpenFile(context.Background(), args[0], nil)
			if err == nil || errors.Is(err, driver.ErrInvalid) {
				return errors.Join(errors.New("want an error that passes"), err)
			}
			for _, f := range files[left:] {
				f.Close()
			}
		}
		b, err := OpenFile(context.Background(), args[0], nil)
		if err != nil {
			return err
		}
		return b.Close()
	}
}

func TestMountedByItself(t *testing.T) {
	path := lockFile(t)
	take(t, connect(t, path), request("x", driver.Exclusive, long))
	other := filepath.Join(t.TempDir(), "locks.db")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(selfPath(t), path, other)
	cmd.Env = append(os.Environ(), childEnv+"=mounted")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("this user may not make a mount namespace")
	}
	if err != nil || !strings.HasPrefix(string(out), "true ") || !strings.Contains(string(out), "mounted by itself") {
		t.Errorf("%s (%v); want ErrInvalid", out, err)
	}
}

func TestOutOfDescriptors(t *testing.T) {
	path := lockFile(t)
	connect(t, path)
	spawn(t, "scarce", path).finish(t)
}
