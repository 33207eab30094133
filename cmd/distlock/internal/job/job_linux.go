package job

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

func init() {
	// The kernel kills the child when the thread that starts it ends. The lock of a killed distlock lives until its TTL
	// ends, so no other client works at the same time.
	tieToParent = func(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
	adoptOrphans = func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
	below = visitBelow
}

// visitBelow finds the processes below this one in /proc. This one starts nothing but the command, and adopts its orphans.
func visitBelow(visit func(pid, group int)) {
	type entry struct{ pid, group int }
	children := map[int][]entry{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		var state string
		var parent, group int
		// The name, in parentheses, may have any characters.
		if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &parent, &group); err == nil && state != "Z" && state != "X" {
			children[parent] = append(children[parent], entry{pid, group})
		}
	}
	for next := children[os.Getpid()]; len(next) > 0; {
		e := next[0]
		next = append(next[1:], children[e.pid]...)
		visit(e.pid, e.group)
	}
}
