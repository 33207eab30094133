package sqlitelock

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/distlock/distlock/driver"
)

var remote = map[uint32]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.SMB2_SUPER_MAGIC: "SMB",
	unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.AFS_SUPER_MAGIC:  "AFS",
	unix.CEPH_SUPER_MAGIC: "Ceph",
}

// checkDisk refuses file systems that are shared with other hosts: SQLite's WAL
// needs memory that all its users share.
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
