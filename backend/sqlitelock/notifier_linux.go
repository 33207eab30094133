package sqlitelock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// notifier wakes waiters in other processes. Names, and places in their queues, have slots in a small file
// next to the database. A release changes the slots of the places that it lets in, or the name's slot.
// Waiters watch the file with inotify, and check whether their slots have changed.
// A notification that is lost, because a process was killed, only costs a delay: the core retries by
// itself.
type notifier struct {
	file *os.File

	mu       sync.Mutex
	watchers map[*slotWatcher]struct{}
	closed   bool
	events   *os.File      // inotify, from the first slotWatcher on
	ended    chan struct{} // closed when no more events are read
}

// slotWatcher waits for a slot to differ from seen.
type slotWatcher struct {
	slot  int64
	seen  uint64
	heard func()
}

const (
	slots    = 4096
	slotSize = 8
)

// slotOf returns the slot of a name or place. Those that share one get superfluous signals.
func slotOf(key string) int64 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, key)
	return int64(h.Sum32()%slots) * slotSize
}

// newNotifier opens the file, or makes it with the permissions and the owner of the
// database, as SQLite does with its own files. If it can't be opened, waiters poll.
func newNotifier(path string) (*notifier, error) {
	like, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	n := &notifier{watchers: map[*slotWatcher]struct{}{}}
	n.file, err = os.OpenFile(path+"-notify", os.O_RDWR|os.O_CREATE|os.O_EXCL, like.Mode().Perm())
	if err == nil {
		copyOwner(n.file, like)
		return n, nil
	}
	n.file = openPlain(path + "-notify")
	return n, nil
}

// openPlain opens a file, or returns nil. Others who may write into the folder could have put a link there, to a file
// that is not theirs.
func openPlain(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Sys().(*syscall.Stat_t).Nlink == 1 {
		return f
	}
	f.Close()
	return nil
}

// copyOwner gives f the permissions of another file, whatever the umask is, and its owner if
// this process may.
func copyOwner(f *os.File, like os.FileInfo) {
	_ = f.Chmod(like.Mode().Perm())
	if st, ok := like.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid))
	}
}

// notify wakes the waiters for names and places.
func (n *notifier) notify(keys []string, now int64) {
	if n.file == nil {
		return
	}
	var slot [slotSize]byte
	binary.NativeEndian.PutUint64(slot[:], uint64(now))
	for _, k := range keys {
		// If it fails, waiters retry by themselves.
		_, _ = n.file.WriteAt(slot[:], slotOf(k))
	}
}

// watch has heard called when a name or place is woken, until stop.
func (n *notifier) watch(key string, heard func()) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.start(); err != nil {
		return nil, err
	}
	w := &slotWatcher{slot: slotOf(key), heard: heard}
	w.seen = n.read(w.slot)
	n.watchers[w] = struct{}{}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, w)
	}, nil
}

// start makes the kernel report changes, once.
func (n *notifier) start() error {
	switch {
	case n.closed:
		return driver.ErrClosed
	case n.file == nil:
		return driver.ErrSkip
	case n.events != nil:
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: inotify: %w", driver.ErrSkip, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	// By descriptor: the path may lead to another file by now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", n.file.Fd()), unix.IN_MODIFY); err != nil {
		return errors.Join(fmt.Errorf("%w: inotify: %w", driver.ErrSkip, err), events.Close())
	}
	n.events, n.ended = events, make(chan struct{})
	go n.readEvents()
	return nil
}

// readEvents wakes watchers until the notifier is closed.
func (n *notifier) readEvents() {
	defer close(n.ended)
	buf := make([]byte, 4096)
	for {
		if _, err := n.events.Read(buf); err != nil {
			return
		}
		n.wake()
	}
}

func (n *notifier) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		if now := n.read(w.slot); now != w.seen {
			w.seen = now
			w.heard()
		}
	}
}

// read returns a slot's value; 0 where nothing was ever written.
func (n *notifier) read(slot int64) uint64 {
	var v [slotSize]byte
	_, _ = n.file.ReadAt(v[:], slot)
	return binary.NativeEndian.Uint64(v[:])
}

// close is called after the last notify.
func (n *notifier) close() error {
	n.mu.Lock()
	n.closed = true
	events := n.events
	n.mu.Unlock()
	switch {
	case n.file == nil:
		return nil
	case events == nil:
		return n.file.Close()
	}
	err := events.Close()
	<-n.ended
	return errors.Join(err, n.file.Close())
}

// newClock returns CLOCK_MONOTONIC, which all processes of a Linux host share. It is the
// clock of Go's runtime too. It doesn't jump, and stands still while the host is suspended:
// the file's holds and their holders sleep and wake together.
func newClock() (clock, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return clock{}, fmt.Errorf("need /proc to tell one boot of the host from the next: %w", err)
	}
	offset := namespaceOffset()
	return clock{boot: string(bytes.TrimSpace(id)), stops: true, now: func() int64 {
		var ts unix.Timespec
		// It can't fail: every Linux kernel has this clock.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		return ts.Nano() - offset
	}}, nil
}

// namespaceOffset returns the offset of the process's time namespace from the host's clock,
// in nanoseconds. Kernels without such namespaces have no offsets.
func namespaceOffset() int64 {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0
	}
	return parseOffset(text)
}

func parseOffset(text []byte) int64 {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "monotonic" && f[0] != strconv.Itoa(unix.CLOCK_MONOTONIC) {
			continue
		}
		sec, err1 := strconv.ParseInt(f[1], 10, 64)
		nsec, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 == nil && err2 == nil {
			return sec*int64(time.Second) + nsec
		}
	}
	return 0
}

// remoteDisks are the file systems that several hosts may use at once, and file systems in user space,
// which may be remote. A second host has another clock, and its kernel does not know the first host's locks: it would take the
// first host's holds for holds of an earlier boot, and end them.
var remoteDisks = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.NCP_SUPER_MAGIC:   "NCP",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	unix.V9FS_MAGIC:        "9p",
	unix.FUSE_SUPER_MAGIC:  "FUSE (virtiofs, GlusterFS, sshfs or another)",
	0x01161970:             "GFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x19830326:             "BeeGFS",
	0x20030528:             "OrangeFS",
	0xaad7aaea:             "PanFS",
	0x61636673:             "ACFS",
	0x786f4256:             "VirtualBox's shared folders",
	0xbacbacbc:             "VMware's shared folders",
}

// checkDisk refuses file systems that other hosts may share. SQLite's WAL also needs memory
// that all its users share.
func checkDisk(dir string) error { return checkDiskFor(dir, remoteDisks) }

func checkDiskFor(dir string, remote map[uint32]string) error {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return nil
	}
	if kind, ok := remote[uint32(s.Type)]; ok {
		return fmt.Errorf("%w: directory %s is on %s; the lock file must be on a local disk", driver.ErrInvalid, dir, kind)
	}
	return nil
}
