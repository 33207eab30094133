//go:build !unix

package sqlitelock

import "os"

// fileID identifies nothing here: an open file can't be removed or replaced.
type fileID struct{}

type fileStat struct {
	id    fileID
	links uint64
}

func stat(path string) (fileStat, error) {
	_, err := os.Stat(path)
	return fileStat{links: 1}, err
}
