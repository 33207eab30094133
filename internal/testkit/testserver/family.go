package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// signalFamily sends a signal to the process, and to its children if it is one that forks.
func (p *Process) signalFamily(s os.Signal) error {
	if !p.family {
		err := p.cmd.Process.Signal(s)
		if s == pause {
			awaitState([]*os.Process{p.cmd.Process}, "TZX")
		}
		return err
	}
	p.cmd.Process.Signal(pause) // it must not fork, nor see its children die
	awaitState([]*os.Process{p.cmd.Process}, "TZX")
	children := p.children()
	for _, child := range children {
		child.Signal(s)
	}
	switch s {
	case kill:
		awaitState(children, "ZX")
	case pause:
		awaitState(children, "TZX")
	}
	return p.cmd.Process.Signal(s)
}

// children are the processes that the process has started; none where the system does not
// tell.
func (p *Process) children() []*os.Process {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID()))
	var children []*os.Process
	for field := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil {
			if child, err := os.FindProcess(pid); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// awaitState waits until processes are in one of some states (T is stopped, Z dead with nobody
// having asked what became of it, X dead) or gone. What the dead share is not in use any more.
func awaitState(all []*os.Process, states string) {
	deadline := time.Now().Add(startTimeout)
	for _, p := range all {
		for time.Now().Before(deadline) && !inState(p.Pid, states) {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// inState reports whether all threads of a process are in one of some states, or gone. It is true
// where the system does not tell.
func inState(pid int, states string) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, _ := os.ReadFile(thread)
		_, rest, _ := strings.Cut(string(stat), ") ")
		state, _, _ := strings.Cut(rest, " ")
		if !strings.Contains(states, state) {
			return false
		}
	}
	return true
}
