package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// dieWithParent makes a child end with this process, however that ends.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// owns reports whether a process has the other end of a TCP connection of this one.
func owns(pid int, c net.Conn) bool {
	socket := "socket:[" + inode(c.RemoteAddr(), c.LocalAddr()) + "]"
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(files, func(f string) bool {
		to, err := os.Readlink(f)
		return err == nil && to == socket
	})
}

// inode returns the number of a socket of this machine.
func inode(own, peer net.Addr) string {
	table, _ := os.ReadFile("/proc/net/tcp")
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 9 && strings.HasSuffix(fields[1], hexPort(own)) && strings.HasSuffix(fields[2], hexPort(peer)) {
			return fields[9]
		}
	}
	return ""
}

func hexPort(a net.Addr) string { return fmt.Sprintf(":%04X", a.(*net.TCPAddr).Port) }

// memoryDir returns a folder in memory if there are 4 GB free in it; else an empty string.
func memoryDir() string {
	const dir = "/dev/shm"
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil || uint64(s.Bavail)*uint64(s.Bsize) < 4<<30 {
		return ""
	}
	return dir
}
