package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
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
	roles["full"] = fullRole
	// visits opens a file and closes it, until it is killed.
	roles["visits"] = func(args []string) error {
		for first := true; ; first = false {
			b, err := OpenFile(context.Background(), args[0], nil)
			if err == nil {
				err = b.Close()
			}
			if err != nil {
				return err
			}
			if first {
				fmt.Println("visits")
			}
		}
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

// inNamespace runs a role as root of a mount namespace.
func inNamespace(t *testing.T, role string, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.Command(selfPath(t), args...)
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	text, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("this user may not make a mount namespace")
	}
	return string(text), err
}

func TestMountedByItself(t *testing.T) {
	path := lockFile(t)
	take(t, connect(t, path), request("x", driver.Exclusive, long))
	other := filepath.Join(t.TempDir(), "locks.db")
	must.OK(t, os.WriteFile(other, nil, 0o600))
	out, err := inNamespace(t, "mounted", path, other)
	if err != nil || !strings.HasPrefix(out, "true ") || !strings.Contains(out, "mounted by itself") {
		t.Errorf("%s (%v); want ErrInvalid", out, err)
	}
}

func TestOutOfDescriptors(t *testing.T) {
	path := lockFile(t)
	connect(t, path)
	spawn(t, "scarce", path).finish(t)
}

// A process that closes the file does not keep another one from opening it, whatever it is in the middle of.
func TestOpenBesideAProcessThatCloses(t *testing.T) {
	path := lockFile(t)
	c := spawn(t, "visits", path)
	c.line(t)
	for try := range 300 {
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		c.signal(t, syscall.SIGSTOP)
		goOn := time.AfterFunc(20*time.Millisecond, func() { _ = c.cmd.Process.Signal(syscall.SIGCONT) })
		b, err := OpenFile(t.Context(), path, &Options{BusyTimeout: time.Minute})
		if goOn.Stop() {
			c.signal(t, syscall.SIGCONT)
		}
		if err == nil {
			err = b.Close()
		}
		must.OK(t, err, "try", try)
	}
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	must.OK(t, c.cmd.Process.Signal(s))
}

func TestFullDisk(t *testing.T) {
	if out, err := inNamespace(t, "full", t.TempDir()); err != nil {
		t.Errorf("%s (%v)", out, err)
	}
}

// fullRole fills a disk under a backend, and makes room again.
func fullRole(args []string) error {
	if err := unix.Mount("tmpfs", args[0], "tmpfs", 0, "size=512k"); err != nil {
		return err
	}
	ctx := context.Background()
	b, err := OpenFile(ctx, filepath.Join(args[0], "locks.db"), nil)
	if err != nil {
		return err
	}
	defer b.Close()
	held, gone := request("held", driver.Exclusive, long), request("gone", driver.Exclusive, long)
	_, err1 := b.Acquire(ctx, held)
	_, err2 := b.Acquire(ctx, gone)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	filler := filepath.Join(args[0], "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		return errors.New("the disk has room for a MB")
	}
	// The WAL has room for some frames that it has had before.
	var failures []error
	for len(failures) < 10 {
		r := request(driver.NewOwner(), driver.Exclusive, long)
		_, err := b.Acquire(ctx, r)
		released := b.Release(ctx, gone.Hold)
		for _, err := range []error{err, b.Renew(ctx, []driver.Hold{held.Hold})[0], released} {
			if err != nil && !errors.Is(err, driver.ErrLost) {
				failures = append(failures, err)
			}
		}
		if errors.Is(released, driver.ErrLost) {
			if _, err := b.Acquire(ctx, gone); err != nil {
				failures = append(failures, err)
			}
		}
	}
	for _, err := range failures {
		if !unknown(err) {
			return err
		}
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	_, err = b.Acquire(ctx, request("later", driver.Exclusive, long))
	if released := b.Release(ctx, gone.Hold); !errors.Is(released, driver.ErrLost) {
		err = errors.Join(err, released)
	}
	return errors.Join(err, b.Renew(ctx, []driver.Hold{held.Hold})[0], b.Release(ctx, held.Hold))
}
