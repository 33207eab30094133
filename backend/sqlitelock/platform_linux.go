package sqlitelock

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// newClock returns CLOCK_MONOTONIC, which all processes of a Linux host share. It is the
// clock of Go's runtime too. It doesn't jump, and stands still while the host is suspended:
// the file's holds and their holders sleep and wake together.
func newClock() (clock, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return clock{}, fmt.Errorf("need /proc to tell one boot of the host from the next: %w", err)
	}
	offset := namespaceOffset()
	return clock{boot: string(bytes.TrimSpace(id)), now: func() int64 {
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
// which may be remote. A second host has another boot. It would take the first host's holds for holds
// of its own last boot, and end them.
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
