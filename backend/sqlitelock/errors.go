package sqlitelock

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/distlock/distlock/driver"
)

// code is SQLite's primary result code, 0 if err is not SQLite's.
func code(err error) int {
	if e := (*sqlite.Error)(nil); errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// busy says that another process was writing: nothing was done.
func busy(err error) bool { return code(err) == lib.SQLITE_BUSY }

// hopeless words what can't get better by asking again.
var hopeless = map[int]string{
	lib.SQLITE_NOTADB:   "is not an SQLite database",
	lib.SQLITE_CORRUPT:  "is a damaged SQLite database",
	lib.SQLITE_READONLY: "can't be written: check the permissions of the file and its directory, which needs room for -wal and -shm files",
	lib.SQLITE_CANTOPEN: "can't be opened: check the permissions of the file and its directory, which needs room for -wal and -shm files",
	lib.SQLITE_PERM:     "can't be opened: check the permissions of the file and its directory",
	lib.SQLITE_AUTH:     "can't be opened: check the permissions of the file and its directory",
}

// openError sorts what went wrong while opening path.
func openError(path string, err error) error {
	if driver.Final(err) {
		return err
	}
	if why, ok := hopeless[code(err)]; ok {
		return fmt.Errorf("%w: %s %s: %w", driver.ErrInvalid, path, why, err)
	}
	return fmt.Errorf("sqlitelock: open %s: %w", path, err)
}
