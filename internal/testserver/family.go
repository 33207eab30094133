package testserver

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// signalFamily sends a signal to the process, and to its children if it is one that forks.
func (p *Process) signalFamily(s os.Signal) error {
	if !p.family {
		return p.cmd.Process.Signal(s)
	}
	p.cmd.Process.Signal(pause) // it must not fork, nor see its children die
	children := p.children()
	for _, child := range children {
		child.Signal(s)
	}
	if s == kill {
		awaitGone(children)
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

// awaitGone waits until killed processes have let go of their memory, be it that nobody
// has asked yet what became of them: what they share is in use until then.
func awaitGone(killed []*os.Process) {
	deadline := time.Now().Add(startTimeout)
	for _, p := range killed {
		name := fmt.Sprintf("/proc/%d/cmdline", p.Pid)
		for time.Now().Before(deadline) {
			if line, err := os.ReadFile(name); err != nil || len(line) == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}
