package sqlitelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/distlock/distlock/driver"
)

// files are the files that a backend has opened by name: the database, -wal and -shm. Processes exclude each other only
// if they use the same three. In a WAL of its own a process does not see the others' holds.
type files struct {
	paths [3]string
	ids   [3]fileID
}

var (
	errOtherFiles = errors.New("another process uses the lock file with another -wal or -shm file, because one was removed or the lock file has several names: stop all processes that use it, then start them again")
	errReplaced   = errors.New("the lock file was replaced while it was opened")
)

// identify returns the files that path leads to now. SQLite must have opened them.
func identify(path string) (files, error) {
	f := files{paths: [3]string{path, path + "-wal", path + "-shm"}}
	for i, p := range f.paths {
		st, err := stat(p)
		if err != nil {
			return f, err
		}
		f.ids[i] = st.id
	}
	return f, nil
}

// check returns an error if one of the files was removed or replaced: processes that open the path now do not see the
// locks in it. Nothing was done then.
func (f *files) check() error {
	for i, p := range f.paths {
		switch st, err := stat(p); {
		case errors.Is(err, os.ErrNotExist):
			return driver.Unsent(fmt.Errorf("%s was removed while it is in use: stop all processes that use the lock file, then start them again: %w", p, err))
		case err != nil:
			return driver.Unsent(err)
		case st.id != f.ids[i]:
			return driver.Unsent(fmt.Errorf("%s was replaced by another file while it is in use: stop all processes that use the lock file, then start them again", p))
		}
	}
	return nil
}

// maxLinks bounds a chain of symbolic links, as the kernel does.
const maxLinks = 40

// realPath returns the absolute path without symbolic links. SQLite follows them too, also to a file that does not
// exist yet, and looks for -wal beside the file that it finds.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range maxLinks {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real, nil
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return path, nil
		}
		path = filepath.Join(dir, filepath.Base(path))
		target, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return path, nil
}

// checkNames refuses a file that has other names: SQLite finds -wal and -shm by the name of the database.
func checkNames(path string) error {
	st, err := stat(path)
	if err != nil {
		return nil // it is made by this name
	}
	if st.links > 1 {
		return fmt.Errorf("%w: %s has %d names (hard links); processes that open it by different names would not see each other's locks: keep one name", driver.ErrInvalid, path, st.links)
	}
	return checkMount(path)
}
