package sqlitelock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// TestBellBetweenProcesses has a waiter hear a child's release, and no other.
func TestBellBetweenProcesses(t *testing.T) {
	path := lockFile(t)
	b := connect(t, path)
	mine, other := watch(t, b, "mine"), watch(t, b, "other")
	spawn(t, "turn", path, "mine").finish(t)
	select {
	case <-mine.Ready:
	case <-time.After(time.Minute):
		t.Fatal("a release in another process was not heard")
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
	w, err := b.Watch(t.Context(), request(name, driver.Exclusive, long))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestBellSilentAfterClose(t *testing.T) {
	b := connect(t, lockFile(t))
	w, err := b.Watch(t.Context(), request("x", driver.Exclusive, long))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if len(b.bell.watchers) != 0 {
		t.Errorf("%d watchers after Close", len(b.bell.watchers))
	}
}

func TestRemoteDisk(t *testing.T) {
	dir := t.TempDir()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	wantIs(t, checkDiskFor(dir, map[uint32]string{uint32(s.Type): "NFS"}), driver.ErrInvalid)
	if err := checkDiskFor(dir, nil); err != nil {
		t.Error(err)
	}
	// The numbers are the kernel's and, for the last two, those of the file systems' own sources.
	for name, magic := range map[string]uint32{"FUSE": 0x65735546, "9p": 0x01021997, "GFS2": 0x01161970, "OCFS2": 0x7461636f, "Lustre": 0x0bd00bd0, "GPFS": 0x47504653} {
		if remote[magic] == "" {
			t.Errorf("%s is taken for a local disk", name)
		}
	}
}

func TestNamespaceShift(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic   -3600   500\nboottime  7  0\n":                          -3600*int64(time.Second) + 500,
		"1 10 0\n7 20 0\n": 10 * int64(time.Second),
		"":                 0,
	} {
		if got := parseShift([]byte(text)); got != want {
			t.Errorf("%q: %d; want %d", text, got, want)
		}
	}
}
