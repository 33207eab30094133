package sqlitelock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// bell wakes waiters in other processes. Whoever releases a lock changes the slot
// of its name in a small file next to the database; waiters have the kernel tell
// them of changes, and look whether their slot is among them. A ring that is lost,
// with a process killed in between, costs a delay: the core looks again by itself.
type bell struct {
	file *os.File

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
	events   *os.File // inotify, from the first watcher on
	gone     chan struct{}
}

// watcher waits for its slot to differ from seen.
type watcher struct {
	slot  int64
	seen  uint64
	ready chan struct{}
}

const (
	bellSlots = 4096
	slotSize  = 8
)

func slotOf(name string) int64 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	return int64(h.Sum32()%bellSlots) * slotSize
}

// newBell opens the file, or makes it with the permissions and owner of the database,
// as SQLite does with its own files. One that can't be opened leaves a deaf bell, which
// costs waiters a delay and nothing else.
func newBell(path string) (*bell, error) {
	like, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	b := &bell{watchers: map[*watcher]struct{}{}}
	b.file, err = os.OpenFile(path+"-bell", os.O_RDWR|os.O_CREATE|os.O_EXCL, like.Mode().Perm())
	if err == nil {
		makeLike(b.file, like)
		return b, nil
	}
	if b.file, err = os.OpenFile(path+"-bell", os.O_RDWR, 0); err != nil {
		b.file = nil
	}
	return b, nil
}

// makeLike undoes the umask, and gives the file to the owner of the other one if this
// process may.
func makeLike(f *os.File, like os.FileInfo) {
	_ = f.Chmod(like.Mode().Perm())
	if st, ok := like.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid))
	}
}

// ring says that names may be free since now.
func (b *bell) ring(names []string, now int64) {
	if b.file == nil {
		return
	}
	var slot [slotSize]byte
	binary.NativeEndian.PutUint64(slot[:], uint64(now))
	for _, name := range names {
		// Waiters who don't hear it look again by themselves.
		_, _ = b.file.WriteAt(slot[:], slotOf(name))
	}
}

// listen is armed when it returns.
func (b *bell) listen(name string) (driver.Watch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.start(); err != nil {
		return driver.Watch{}, err
	}
	w := &watcher{slot: slotOf(name), ready: make(chan struct{}, 1)}
	w.seen = b.read(w.slot)
	b.watchers[w] = struct{}{}
	return driver.Watch{Ready: w.ready, Close: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watchers, w)
	}}, nil
}

// start has the kernel report changes, once.
func (b *bell) start() error {
	switch {
	case b.closed:
		return driver.ErrClosed
	case b.file == nil:
		return driver.ErrSkip
	case b.events != nil:
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: inotify: %w", driver.ErrSkip, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	// By descriptor: the path may lead to another file by now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", b.file.Fd()), unix.IN_MODIFY); err != nil {
		return errors.Join(fmt.Errorf("%w: inotify: %w", driver.ErrSkip, err), events.Close())
	}
	b.events, b.gone = events, make(chan struct{})
	go b.hear()
	return nil
}

// hear wakes watchers until the bell is closed.
func (b *bell) hear() {
	defer close(b.gone)
	buf := make([]byte, 4096)
	for {
		// What the events say doesn't matter: there were some.
		if _, err := b.events.Read(buf); err != nil {
			return
		}
		b.wake()
	}
}

func (b *bell) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		now := b.read(w.slot)
		if now == w.seen {
			continue
		}
		w.seen = now
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}

// read is a slot's value; 0 where nothing was ever written.
func (b *bell) read(slot int64) uint64 {
	var v [slotSize]byte
	_, _ = b.file.ReadAt(v[:], slot)
	return binary.NativeEndian.Uint64(v[:])
}

// close ends the listening. It is called once nothing rings any more.
func (b *bell) close() error {
	b.mu.Lock()
	b.closed = true
	events := b.events
	b.mu.Unlock()
	switch {
	case b.file == nil:
		return nil
	case events == nil:
		return b.file.Close()
	}
	err := events.Close()
	<-b.gone
	return errors.Join(err, b.file.Close())
}
