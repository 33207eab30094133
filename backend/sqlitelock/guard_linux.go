package sqlitelock

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// guard tells other backends which -wal and -shm a backend uses, and finds those that use others. It has a
// shared lock on one byte of the database, far behind its end, that stands for the two files. The kernel keeps it for
// the inode, whatever name was opened, and ends it with the process.
type guard struct {
	file    *guardedFile
	entered bool
}

// guardedFile is what the backends of this process that use one database share. Closing any descriptor of a file ends
// the POSIX locks of the whole process on it, SQLite's too. So the descriptors stay open until the last backend has
// closed its connections.
type guardedFile struct {
	id          fileID
	descriptors []*os.File
	users       int
	at          int64 // the byte, while entered > 0
	entered     int
}

var guarded = struct {
	sync.Mutex
	files map[fileID]*guardedFile
}{files: map[fileID]*guardedFile{}}

// The bytes that may be locked. SQLite's own are near 1<<30.
const (
	guardStart = 1 << 61
	guardEnd   = 1 << 62
)

// byteOf returns the byte that stands for a -wal and a -shm.
func byteOf(f *files) int64 {
	h := fnv.New64a()
	for _, id := range f.ids[1:] {
		fmt.Fprintln(h, id.device, id.inode)
	}
	return guardStart + int64(h.Sum64()%(guardEnd-guardStart))
}

// openGuard opens the database, or makes it. It comes before SQLite opens it.
func openGuard(path string) (*guard, error) {
	guarded.Lock()
	defer guarded.Unlock()
	if st, err := stat(path); err == nil && guarded.files[st.id] != nil {
		return guarded.files[st.id].use(), nil
	}
	d, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	id := fileID{uint64(st.Dev), st.Ino}
	f := guarded.files[id]
	if f == nil {
		f = &guardedFile{id: id}
		guarded.files[id] = f
	}
	f.descriptors = append(f.descriptors, d)
	return f.use(), nil
}

func (f *guardedFile) use() *guard {
	f.users++
	return &guard{file: f}
}

// enter locks the byte for f's files. It fails while another backend works on other files. A second call does nothing.
func (g *guard) enter(f *files) error {
	guarded.Lock()
	defer guarded.Unlock()
	at := byteOf(f)
	switch {
	case f.ids[0] != g.file.id:
		return errReplaced
	case g.file.entered > 0 && g.file.at != at:
		return errOtherFiles
	case g.entered:
		return nil
	case g.file.entered == 0:
		if err := g.file.lock(at); err != nil {
			return err
		}
	}
	g.entered = true
	g.file.entered++
	return nil
}

// lock locks a byte, then looks for other locks: of two processes with different bytes one sees the other.
func (f *guardedFile) lock(at int64) error {
	if err := f.set(unix.F_RDLCK, at); err != nil {
		return err
	}
	before, err1 := f.locked(guardStart, at)
	after, err2 := f.locked(at+1, guardEnd)
	err := errors.Join(err1, err2)
	if before || after {
		err = errOtherFiles
	}
	if err != nil {
		return errors.Join(err, f.set(unix.F_UNLCK, at))
	}
	f.at = at
	return nil
}

// alone reports whether no other backend has entered, so that no process has a hold.
func (g *guard) alone() (bool, error) {
	guarded.Lock()
	defer guarded.Unlock()
	others := g.file.entered
	if g.entered {
		others--
	}
	if others > 0 {
		return false, nil
	}
	locked, err := g.file.locked(guardStart, guardEnd)
	return !locked, err
}

// leave takes back enter.
func (g *guard) leave() error {
	guarded.Lock()
	defer guarded.Unlock()
	return g.left()
}

func (g *guard) left() error {
	if !g.entered {
		return nil
	}
	g.entered = false
	g.file.entered--
	if g.file.entered > 0 {
		return nil
	}
	return g.file.set(unix.F_UNLCK, g.file.at)
}

// close comes after SQLite's connections are closed.
func (g *guard) close() error {
	guarded.Lock()
	defer guarded.Unlock()
	errs := []error{g.left()}
	g.file.users--
	if g.file.users == 0 {
		delete(guarded.files, g.file.id)
		for _, d := range g.file.descriptors {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// set locks or unlocks a byte.
func (f *guardedFile) set(kind int16, at int64) error {
	_, err := f.control(unix.F_OFD_SETLK, kind, at, at+1)
	return err
}

// locked reports whether another descriptor has a lock in [from, to).
func (f *guardedFile) locked(from, to int64) (bool, error) {
	if from >= to {
		return false, nil
	}
	l, err := f.control(unix.F_OFD_GETLK, unix.F_WRLCK, from, to)
	return err == nil && l.Type != unix.F_UNLCK, err
}

func (f *guardedFile) control(command int, kind int16, from, to int64) (*unix.Flock_t, error) {
	l := &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: from, Len: to - from}
	for {
		err := unix.FcntlFlock(f.descriptors[0].Fd(), command, l)
		switch err {
		case unix.EINTR:
			continue
		case unix.EINVAL: // an old kernel, or a file system without such locks
			l.Type = unix.F_UNLCK
			return l, nil
		}
		if err != nil {
			err = fmt.Errorf("lock a byte of %s: %w", f.descriptors[0].Name(), err)
		}
		return l, err
	}
}

// checkMount refuses a file that is mounted by itself: SQLite would make -wal and -shm in the directory around it,
// where the processes that use the file by its own directory do not look.
func checkMount(path string) error {
	file, err := mountOf(path)
	if err != nil {
		return err
	}
	dir, err := mountOf(filepath.Dir(path))
	if err != nil {
		return err
	}
	if file != dir {
		return fmt.Errorf("%w: %s is mounted by itself (docker -v, subPath); its processes would not see the locks of those outside: mount its directory", driver.ErrInvalid, path)
	}
	return nil
}

// mountOf returns the mount that a path leads to. A descriptor of kind O_PATH is no descriptor of the file: closing it
// ends no locks.
func mountOf(path string) (string, error) {
	d, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(d)
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", d))
	if err != nil {
		return "", err
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return string(bytes.TrimSpace(id)), nil
		}
	}
	return "", nil // a kernel before 3.15
}

// denied reports whether this user may not use the file or its directory. SQLite has the same code for a process that
// has no descriptor left.
func denied(path string) bool {
	if unix.Faccessat(unix.AT_FDCWD, filepath.Dir(path), unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
		return true
	}
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	return err != nil && err != unix.ENOENT
}
