package sqlitelock

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A child's release wakes the waiter for its lock, and no other.
func TestNotifyBetweenProcesses(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	mine, other := watch(t, b, "mine"), watch(t, b, "other")
	spawn(t, "turn", path, "mine").finish(t)
	select {
	case <-mine.Ready:
	case <-time.After(time.Minute):
		t.Fatal("a release in another process did not wake the waiter")
	}
	select {
	case <-other.Ready:
		t.Error("woken by the release of another lock")
	default:
	}
}

func init() { roles["turn"] = turnRole }

func watch(t *testing.T, b *Backend, name string) driver.Watch {
	t.Helper()
	w := must.Get(b.Watch(t.Context(), request(name, driver.Exclusive, long)))(t)
	t.Cleanup(w.Close)
	return w
}

func TestWatchEndsWithClose(t *testing.T) {
	b := connect(t, lockFile(t))
	w := must.Get(b.Watch(t.Context(), request("x", driver.Exclusive, long)))(t)
	w.Close()
	expect.Equal(t, len(b.store.notifier.watchers), 0, "watchers after Close")
}

func TestRemoteDisk(t *testing.T) {
	dir := t.TempDir()
	var s unix.Statfs_t
	must.OK(t, unix.Statfs(dir, &s))
	wantIs(t, checkDiskFor(dir, map[uint32]string{uint32(s.Type): "NFS"}), driver.ErrInvalid)
	expect.OK(t, checkDiskFor(dir, nil))
	// The last two numbers come from the sources of the file systems, the others from the kernel.
	for name, magic := range map[string]uint32{"FUSE": 0x65735546, "9p": 0x01021997, "GFS2": 0x01161970, "OCFS2": 0x7461636f, "Lustre": 0x0bd00bd0, "GPFS": 0x47504653} {
		if remoteDisks[magic] == "" {
			t.Errorf("%s is accepted as a local disk", name)
		}
	}
}

func TestNamespaceOffset(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic   -3600   500\nboottime  7  0\n":                          -3600*int64(time.Second) + 500,
		"1 10 0\n7 20 0\n": 10 * int64(time.Second),
		"":                 0,
	} {
		if got := parseOffset([]byte(text)); got != want {
			t.Errorf("%q: %d; want %d", text, got, want)
		}
	}
}

// The notifier's file has the database's permissions, whatever the umask. All users of the database can
// open it.
func TestNotifierFileIsLikeTheDatabase(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	path := filepath.Join(t.TempDir(), "locks.db")
	must.OK(t, os.WriteFile(path, nil, 0o600))
	must.OK(t, os.Chmod(path, 0o660))
	connect(t, path)
	fi, err := os.Stat(path + "-notify")
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("-notify: %v, %v", fi.Mode(), err)
	}
}

// A link in the place of the notifier's file, or another name of it, is not written to.
func TestNotifierFileIsALink(t *testing.T) {
	for what, link := range map[string]func(old, new string) error{"symbolic": os.Symlink, "hard": os.Link} {
		dir := t.TempDir()
		theirs := filepath.Join(dir, "theirs")
		must.OK(t, os.WriteFile(theirs, []byte("data"), 0o600))
		path := filepath.Join(dir, "locks.db")
		must.OK(t, link(theirs, path+"-notify"))
		b := connect(t, path)
		r := request("x", 1, long)
		take(t, b, r)
		expect.OK(t, b.Release(t.Context(), r.Hold))
		if text, err := os.ReadFile(theirs); string(text) != "data" {
			t.Errorf("%s link: %d bytes, %v", what, len(text), err)
		}
	}
}

// Without the notifier's file waiters poll, and nothing fails.
func TestNoNotifierFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	must.OK(t, os.Mkdir(path+"-notify", 0o700))
	b := connect(t, path)
	r := request("x", 1, long)
	take(t, b, r)
	expect.OK(t, b.Release(t.Context(), r.Hold))
}
