package sqlitelock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/distlock/distlock/driver"
)

func init() {
	driver.Register("sqlite", func(ctx context.Context, u *url.URL) (driver.Backend, error) { return openURL(ctx, u) })
}

// Durability says which changes a power loss may undo.
type Durability string

// The durabilities. A killed process never loses anything.
const (
	// Normal is the default, and several times faster: a power loss may undo the last
	// moments. It ends all holds anyway, and the clock keeps fences increasing, unless it
	// goes back as well.
	Normal Durability = "normal"

	// Full writes each grant and release to the disk before it is answered. It is for
	// hosts whose clock forgets the time without power.
	Full Durability = "full"
)

// Options for OpenFile. The zero value, like a nil pointer, means the defaults.
type Options struct {
	// Synchronous is Normal or Full; empty means Normal. Processes that share a file should
	// agree.
	Synchronous Durability

	// BusyTimeout bounds how long a call waits while another process writes. Zero means 5 s.
	BusyTimeout time.Duration
}

const defaultBusyTimeout = 5 * time.Second

func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Synchronous == "" {
		c.Synchronous = Normal
	}
	if c.Synchronous != Normal && c.Synchronous != Full {
		return c, fmt.Errorf("%w: Synchronous %q: want %q or %q", driver.ErrInvalid, c.Synchronous, Normal, Full)
	}
	if c.BusyTimeout < 0 {
		return c, fmt.Errorf("%w: BusyTimeout %v is negative", driver.ErrInvalid, c.BusyTimeout)
	}
	if c.BusyTimeout == 0 {
		c.BusyTimeout = defaultBusyTimeout
	}
	return c, nil
}

// Open opens the lock file at a URL, and makes it if it doesn't exist:
//
//	sqlite:/var/lib/app/locks.db
//	sqlite:///var/lib/app/locks.db
//	sqlite:locks.db?synchronous=full&busy_timeout=2s
//
// The characters % ? # of a path are %-encoded. The parameters synchronous (normal, full)
// and busy_timeout are described at Options. The directory must exist. The error is
// ErrInvalid if the file can never be opened.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "sqlite" {
		return nil, fmt.Errorf("%w: want a URL such as sqlite:/path/to/locks.db", driver.ErrInvalid)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	p := driver.NewParams(u)
	opt := Options{
		Synchronous: Durability(p.Choice("synchronous", string(Normal), string(Full))),
		BusyTimeout: p.Duration("busy_timeout", defaultBusyTimeout),
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	path, err := urlPath(u)
	if err != nil {
		return nil, err
	}
	return OpenFile(ctx, path, &opt)
}

func urlPath(u *url.URL) (string, error) {
	switch {
	case u.Fragment != "":
		return "", fmt.Errorf("%w: URL has a #; write it as %%23 if it belongs to the path", driver.ErrInvalid)
	case u.Host != "" || u.User != nil:
		return "", fmt.Errorf("%w: URL names a host; want sqlite:relative.db or sqlite:/path/to/locks.db", driver.ErrInvalid)
	}
	path := u.Path
	if u.Opaque != "" {
		p, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return "", fmt.Errorf("%w: URL path: %w", driver.ErrInvalid, err)
		}
		path = p
	}
	if path == ":memory:" {
		return "", fmt.Errorf("%w: a database in memory is not shared between processes; mem: is the backend for one process", driver.ErrInvalid)
	}
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/")
	}
	return path, nil
}

// OpenFile is like Open, with a path.
func OpenFile(ctx context.Context, path string, opt *Options) (*Backend, error) {
	o, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	path, err = checkPath(path)
	if err != nil {
		return nil, err
	}
	clk, err := newClock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	b, err := open(ctx, path, o, clk)
	if err != nil {
		return nil, openError(path, err)
	}
	return b, nil
}

// checkPath returns the absolute path without symbolic links. Its errors say what SQLite
// only calls "unable to open database file".
func checkPath(path string) (string, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%w: no path; want one such as sqlite:/path/to/locks.db", driver.ErrInvalid)
	}
	abs, err := realPath(path)
	if err != nil {
		return "", fmt.Errorf("sqlitelock: open %s: %w", path, err)
	}
	if err := checkDir(filepath.Dir(abs)); err != nil {
		return "", err
	}
	if fi, err := os.Stat(abs); err == nil && !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%w: %s is not a regular file (%s); want one, or a name that is free", driver.ErrInvalid, abs, fi.Mode().Type())
	}
	return abs, checkNames(abs)
}

func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: directory %s does not exist; make it first", driver.ErrInvalid, dir)
	case err != nil:
		return fmt.Errorf("%w: directory %s: %w", driver.ErrInvalid, dir, err)
	case !fi.IsDir():
		return fmt.Errorf("%w: %s is not a directory", driver.ErrInvalid, dir)
	}
	return checkDisk(dir)
}

// open does the part of OpenFile whose errors openError classifies.
func open(ctx context.Context, path string, opt Options, clk clock) (*Backend, error) {
	db := sql.OpenDB(connector(dsn(path, opt)))
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	return start(ctx, db, path, opt.BusyTimeout, opt.Synchronous == Normal, clk)
}

// connector opens connections with a driver of their own: what other packages of the program register for connections
// of "sqlite", such as a hook with PRAGMA locking_mode or synchronous, does not reach them.
type connector string

func (c connector) Connect(context.Context) (sqldriver.Conn, error) {
	return c.Driver().Open(string(c))
}

func (connector) Driver() sqldriver.Driver { return new(sqlite.Driver) }

// maxWAL bounds -wal, in bytes, when no transaction needs more. It is twice what SQLite writes between two checkpoints.
const maxWAL = 8 << 20

// maxConns leaves two connections for Inspect and List beside the writer's.
const maxConns = 3

func dsn(path string, opt Options) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	q := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", opt.BusyTimeout.Milliseconds()),
		fmt.Sprintf("synchronous(%s)", opt.Synchronous),
		fmt.Sprintf("journal_size_limit(%d)", maxWAL),
	}, "_error_rc": {"1"}}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// permanent explains the result codes that a retry can't change.
var permanent = map[int]string{
	lib.SQLITE_NOTADB:   "is not an SQLite database",
	lib.SQLITE_CORRUPT:  "is a damaged SQLite database",
	lib.SQLITE_READONLY: "can't be written: check the permissions of the file and its directory, which needs room for -wal and -shm files",
	lib.SQLITE_CANTOPEN: "can't be opened: check the permissions of the file and its directory, which needs room for -wal and -shm files",
	lib.SQLITE_PERM:     "can't be opened: check the permissions of the file and its directory",
	lib.SQLITE_AUTH:     "can't be opened: check the permissions of the file and its directory",
}

// openError classifies an error that came while opening path.
func openError(path string, err error) error {
	if driver.Final(err) {
		return err
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %s %s: %w", driver.ErrInvalid, path, permanent[lib.SQLITE_CANTOPEN], err)
	}
	if reason, ok := permanent[resultCode(err)]; ok && (resultCode(err) != lib.SQLITE_CANTOPEN || denied(path)) {
		return fmt.Errorf("%w: %s %s: %w", driver.ErrInvalid, path, reason, err)
	}
	return fmt.Errorf("sqlitelock: open %s: %w", path, err)
}
