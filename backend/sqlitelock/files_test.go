package sqlitelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func needGuards(t *testing.T) {
	t.Helper()
	if !guards {
		t.Skip("this system has no locks of open files")
	}
}

// Another process must not find a -wal or -shm of its own: it would see no holds.
func TestSideFilesRemoved(t *testing.T) {
	for _, sides := range []string{"-wal", "-shm", "-wal -shm"} {
		t.Run(sides, func(t *testing.T) {
			path := lockFile(t)
			a := connect(t, path)
			r := request("x", driver.Exclusive, long)
			take(t, a, r)
			for _, s := range strings.Fields(sides) {
				must.OK(t, os.Remove(path+s))
			}
			for _, err := range allCalls(t, a, r.Hold) {
				if !unknown(err) || !errors.Is(err, driver.ErrUnsent) || !strings.Contains(err.Error(), path+strings.Fields(sides)[0]) {
					t.Errorf("%v; want an unknown outcome that names the file", err)
				}
			}
			if answer := spawn(t, "open", path).line(t); !strings.HasPrefix(answer, "false ") || guards && !strings.Contains(answer, "another -wal or -shm") {
				t.Errorf("another process: %s", answer)
			}
			if _, err := OpenFile(t.Context(), path, nil); guards && !errors.Is(err, errOtherFiles) {
				t.Errorf("another backend of this process: %v", err)
			}
			must.OK(t, a.Close())
			take(t, connect(t, path), request("y", driver.Exclusive, long))
		})
	}
}

// allCalls makes each kind of call.
func allCalls(t *testing.T, b *Backend, h driver.Hold) []error {
	_, err1 := b.Acquire(t.Context(), request("y", driver.Exclusive, long))
	_, err2 := b.Inspect(t.Context(), "x")
	err3 := b.List(t.Context(), "", func(string) bool { return true })
	return []error{err1, err2, err3, b.Renew(t.Context(), []driver.Hold{h})[0], b.Release(t.Context(), h)}
}

// A file that is moved away under its holder can't be used by its new name.
func TestFileRenamed(t *testing.T) {
	needGuards(t)
	path := lockFile(t)
	a := connect(t, path)
	r := request("x", driver.Exclusive, long)
	take(t, a, r)
	other := path + ".old"
	must.OK(t, os.Rename(path, other))
	expect.Be(t, expect.Err(OpenFile(t.Context(), other, nil)), errOtherFiles, "opened by its new name")
	must.OK(t, os.Rename(other, path))
	expect.OK(t, a.Renew(t.Context(), []driver.Hold{r.Hold})[0], "after it is back")
}

func TestHardLink(t *testing.T) {
	path := lockFile(t)
	a := connect(t, path)
	r := request("x", driver.Exclusive, long)
	take(t, a, r)
	other := path + ".link"
	if err := os.Link(path, other); err != nil {
		t.Skip(err)
	}
	for _, p := range []string{path, other} {
		_, err := OpenFile(t.Context(), p, nil)
		wantIs(t, err, driver.ErrInvalid)
		if !strings.Contains(err.Error(), "hard link") {
			t.Errorf("%v", err)
		}
	}
	// A backup that makes links harms no hold.
	expect.OK(t, a.Renew(t.Context(), []driver.Hold{r.Hold})[0])
}

// A symbolic link leads to the file that it names, also before that exists.
func TestOpenThroughDanglingSymlink(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real.db")
	for link, target := range map[string]string{"one": "two", "two": "real.db"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Skip(err)
		}
	}
	a := connect(t, filepath.Join(dir, "one"))
	take(t, a, request("x", driver.Exclusive, long))
	b := connect(t, real)
	refused(t, b, request("x", driver.Exclusive, long))
	expect.Equal(t, a.Caps().Name, b.Caps().Name, "one file has two names")
}

// The working directory matters once, when the file is opened.
func TestRelativePathStays(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	b := must.Get(Open(t.Context(), "sqlite:locks.db"))(t)
	defer b.Close()
	t.Chdir(t.TempDir())
	r := request("x", driver.Exclusive, long)
	take(t, b, r)
	path := filepath.Join(dir, "locks.db")
	if real, err := filepath.EvalSymlinks(path); err != nil || b.Caps().Name != "sqlite:"+real {
		t.Errorf("named %s; want the absolute path (%v)", b.Caps().Name, err)
	}
	must.OK(t, os.Rename(path, path+"x"))
	if err := b.Release(t.Context(), r.Hold); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v; want the absolute path in it", err)
	}
}

// A descriptor of the database that is closed ends the POSIX locks of all connections of the process.
func TestClosedBackendKeepsLocksOfAnother(t *testing.T) {
	path := lockFile(t)
	a := connect(t, path)
	take(t, a, request("x", driver.Exclusive, long))
	must.OK(t, connect(t, path).Close())
	// If the lock of a's connection were gone, this process would be the last one, and would remove -wal.
	spawn(t, "open", path).finish(t)
	expect.Be(t, expect.Err(a.Acquire(t.Context(), request("x", driver.Exclusive, long))), driver.ErrHeld)
}

// A directory that can't be reached for a while ends nothing.
func TestRefused(t *testing.T) {
	drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
		dir := filepath.Join(t.TempDir(), "locks")
		must.OK(t, os.Mkdir(dir, 0o755))
		move := func(from, to string) {
			expect.OK(t, os.Rename(from, to))
		}
		return drivertest.Harness{
			Open: func(ctx context.Context) (driver.Backend, error) {
				return OpenFile(ctx, filepath.Join(dir, "locks.db"), nil)
			},
			Withdraw: func() func() {
				move(dir, dir+".away")
				return func() { move(dir+".away", dir) }
			},
		}
	})
}

// What another package of the program sets on each connection of the driver "sqlite" does not reach ours.
func TestHooksOfOthers(t *testing.T) {
	path := lockFile(t)
	spawn(t, "hooked", path).finish(t)
}

func init() {
	roles["hooked"] = func(args []string) error {
		sqlite.RegisterConnectionHook(func(c sqlite.ExecQuerierContext, _ string) error {
			_, err := c.ExecContext(context.Background(), "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=OFF; PRAGMA query_only=1", nil)
			return err
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 {
			b, err := OpenFile(ctx, args[0], nil)
			if err != nil {
				return err
			}
			if _, err := b.Acquire(ctx, request(driver.NewOwner(), driver.Exclusive, long)); err != nil {
				return err
			}
		}
		return nil
	}
}
