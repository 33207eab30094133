package sqlitelock

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

// remote are file systems that several hosts may use at once, or of which only their program
// knows it, as of those in user space. Each host has a clock and a boot of its own: one that
// opens the file takes the holds of another for those of its own last boot, and ends them.
var remote = map[uint32]string{
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

// checkDisk refuses file systems that are shared with other hosts. SQLite's WAL also needs
// memory that all its users share.
func checkDisk(dir string) error { return checkDiskFor(dir, remote) }

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
