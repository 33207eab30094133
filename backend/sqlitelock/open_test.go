package sqlitelock

import (
	"bytes"
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestOpenURL(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "a b%?#.db")
	for _, path := range []string{filepath.Join(dir, "plain.db"), odd} {
		escaped := (&url.URL{Path: path}).EscapedPath()
		for _, u := range []string{"sqlite:" + escaped, "sqlite://" + escaped, "sqlite:" + escaped + "?synchronous=full&busy_timeout=1s"} {
			b, err := driver.Open(t.Context(), u)
			must.OK(t, err, u)
			expect.OK(t, expect.Err(os.Stat(path)), u)
			expect.OK(t, b.Close(), u)
		}
	}
}

func TestOpenRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	b := must.Get(Open(t.Context(), "sqlite:my%20locks.db"))(t)
	defer b.Close()
	expect.OK(t, expect.Err(os.Stat("my locks.db")))
	same := connect(t, filepath.Join(".", "sub", "..", "my locks.db"))
	expect.Equal(t, b.Caps().Name, same.Caps().Name, "one file has two names")
}

func TestOpenThroughSymlink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link.db")
	must.OK(t, os.Symlink(filepath.Join(dir, "real.db"), link))
	a := connect(t, filepath.Join(dir, "real.db"))
	take(t, a, request("x", driver.Exclusive, long))
	refused(t, connect(t, link), request("x", driver.Exclusive, long))
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	must.OK(t, os.WriteFile(text, bytes.Repeat([]byte("no database. "), 1000), 0o600))
	for u, words := range map[string]string{
		"sqlite:":                                 "no path",
		"sqlite::memory:":                         "not shared",
		"sqlite://locks.db":                       "names a host",
		"sqlite:" + dir + "/x.db#1":               "%23",
		"sqlite:" + dir + "/x.db?mode=ro":         "unknown parameter \"mode\"",
		"sqlite:" + dir + "/x.db?synchronous=off": "want one of normal, full",
		"sqlite:" + dir + "/x.db?busy_timeout=5":  "positive duration",
		"sqlite:" + dir + "/none/x.db":            "directory " + dir + "/none does not exist",
		"sqlite:" + dir:                           "not a regular file",
		"sqlite:" + text + "/x.db":                text,
		"sqlite:" + text:                          "not an SQLite database",
		"redis://localhost":                       "sqlite:/path",
	} {
		locktest.OpenFails(t, Open, u, true, words)
	}
}

func TestOptionsRefused(t *testing.T) {
	for _, o := range []Options{{Synchronous: "off"}, {BusyTimeout: -1}} {
		_, err := OpenFile(t.Context(), lockFile(t), &o)
		wantIs(t, err, driver.ErrInvalid)
	}
}

// foreign creates the database of another program.
func foreign(t *testing.T, script string) string {
	t.Helper()
	path := lockFile(t)
	db := must.Get(sql.Open("sqlite", path))(t)
	must.Get(db.Exec(script))(t)
	must.OK(t, db.Close())
	return path
}

func TestOpenLeavesForeignDatabases(t *testing.T) {
	for script, words := range map[string]string{
		"CREATE TABLE users (id INTEGER)": "another program",
		"PRAGMA user_version=1":           "another program",
		"PRAGMA application_id=7":         "another program",
		"CREATE TABLE locks (name TEXT); PRAGMA application_id=0x646c636b; PRAGMA user_version=3": "newer distlock",
		"CREATE TABLE locks (name TEXT); PRAGMA application_id=0x646c636b; PRAGMA user_version=1": "older distlock",
		"CREATE TABLE locks (name TEXT); PRAGMA application_id=0x646c636b":                        "never existed",
	} {
		path := foreign(t, script)
		before := must.Get(os.ReadFile(path))(t)
		_, err := OpenFile(t.Context(), path, nil)
		wantIs(t, err, driver.ErrInvalid)
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %q doesn't say %q", script, err, words)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the database was changed (%v)", script, err)
		}
	}
}

func TestOpenDamaged(t *testing.T) {
	path := lockFile(t)
	must.OK(t, connect(t, path).Close())
	fi := must.Get(os.Stat(path))(t)
	f := must.Get(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	// The header stays intact.
	must.Get(f.WriteAt(bytes.Repeat([]byte{0xff}, int(fi.Size())-100), 100))(t)
	_, err := OpenFile(t.Context(), path, nil)
	wantIs(t, err, driver.ErrInvalid)
}

func TestOpenAtOnce(t *testing.T) {
	path := lockFile(t)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			b, err := OpenFile(context.Background(), path, nil)
			if err == nil {
				err = b.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		expect.OK(t, <-errs)
	}
}

func TestOpenInContext(t *testing.T) {
	path := lockFile(t)
	defer writeLock(t, path)()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := OpenFile(ctx, path, nil)
	wantIs(t, err, context.Canceled)
}

// The first Open creates the tables, and waits for other writers.
func TestOpenWhileAnotherWrites(t *testing.T) {
	path := lockFile(t)
	defer writeLock(t, path)()
	_, err := OpenFile(t.Context(), path, &Options{BusyTimeout: 30 * time.Millisecond})
	if !unknown(err) || !isBusy(err) {
		t.Errorf("got %v; want SQLITE_BUSY as an unknown outcome", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = OpenFile(ctx, path, nil)
	wantIs(t, err, context.DeadlineExceeded)
}
