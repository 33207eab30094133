//go:build unix

package sqlitelock

import (
	"os"
	"syscall"
)

// fileID identifies a file among those that exist.
type fileID struct{ device, inode uint64 }

type fileStat struct {
	id    fileID
	links uint64
}

// stat is os.Stat for each transaction: it allocates little.
func stat(path string) (fileStat, error) {
	var st syscall.Stat_t
	for {
		err := syscall.Stat(path, &st)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return fileStat{}, &os.PathError{Op: "stat", Path: path, Err: err}
		}
		return fileStat{fileID{uint64(st.Dev), st.Ino}, uint64(st.Nlink)}, nil
	}
}
