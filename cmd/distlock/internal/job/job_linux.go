package job

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func init() {
	// The kernel kills the child when the thread that starts it ends. The lock of a killed distlock lives until its TTL
	// ends, so no other client works at the same time.
	tieToParent = func(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
	adoptOrphans = func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
	children, below = ownChildren, visitBelow
}

// visitBelow finds the processes below this one in /proc. This one starts nothing but the command, and adopts its orphans.
func visitBelow(but relatives, visit func(pid, group int)) {
	byParent := processes()
	for next := byParent[os.Getpid()]; len(next) > 0; {
		e := next[0]
		next = next[1:]
		if but[e.pid] == e.started {
			continue
		}
		next = append(next, byParent[e.pid]...)
		visit(e.pid, e.group)
	}
}

func ownChildren() relatives {
	own := relatives{}
	for _, e := range processes()[os.Getpid()] {
		own[e.pid] = e.started
	}
	return own
}

// entry is a living process in /proc.
type entry struct {
	pid, group int
	started    string
}

// processes returns all living processes by their parents.
func processes() map[int][]entry {
	byParent := map[int][]entry{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may have any characters.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		group, _ := strconv.Atoi(fields[2])
		byParent[parent] = append(byParent[parent], entry{pid, group, fields[19]})
	}
	return byParent
}
