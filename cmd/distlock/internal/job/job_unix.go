//go:build unix

package job

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is the command's, or its group.
type process struct {
	*Command
	pid    int
	shared bool      // it is in this process's group
	gone   bool      // it has ended, so that its pid may be another process's
	others relatives // children that this process had before, as those of a shell that became it, or of an earlier command
	ended  chan status
	denied bool // a signal was, and the user was warned
	kill   func(pid int, sig syscall.Signal) error
}

func (c *Command) start() (*process, error) {
	p := &process{Command: c, shared: terminal() >= 0, ended: make(chan status, 1), kill: unix.Kill}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		p.others = children()
	}
	adoptOrphans()
	c.Catch(catchable()...)
	started := make(chan error)
	go p.startAndWait(started)
	return p, <-started
}

// startAndWait starts the command and waits for it, all on one thread: tieToParent ties a child to the
// thread that started it.
func (p *process) startAndWait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attributes := &syscall.SysProcAttr{Setpgid: !p.shared}
	if p.OnLoss != Ignore {
		tieToParent(attributes)
	}
	// os.StartProcess would first start a process to find out what the kernel can do.
	pid, err := syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{
		Env: p.Env, Files: []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()}, Sys: attributes,
	})
	p.pid = pid
	started <- err
	if err != nil {
		return
	}
	state, err := waitFor(pid)
	switch {
	case err != nil:
		p.Warnf("%s: can't tell how it ended: %w", p.Args[0], err)
		p.ended <- status{code: 1}
	case state.Signaled():
		p.ended <- status{128 + int(state.Signal()), state.Signal()}
	default:
		p.ended <- status{code: state.ExitStatus()}
	}
}

// tieToParent makes the command die with this process, where the system can do that.
var tieToParent = func(*syscall.SysProcAttr) {}

// adoptOrphans makes processes that outlive their parent this process's children, where the system can do that.
var adoptOrphans = func() {}

// relatives are processes, each with the time of its start, since pids are used again.
type relatives map[int]string

// children returns this process's, where the system can tell.
var children = func() relatives { return nil }

// below calls visit for each living process that this one has started or adopted, or that one of these has, where the
// system can tell. It leaves out the children in but, with all below them.
var below = func(but relatives, visit func(pid, group int)) {}

// waitFor waits until the process ends. It waits for all children, since
// the first process of a container also has those that the command left behind.
func waitFor(pid int) (state unix.WaitStatus, err error) {
	for {
		ended, err := unix.Wait4(-1, &state, 0, nil)
		if ended == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return state, err
		}
	}
}

// reap removes children that have ended.
func reap() {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}

// signal sends to the group; to the command itself if it is in this process's group, or has left its own.
func (p *process) signal(sig syscall.Signal) {
	err := error(unix.ESRCH)
	if !p.shared {
		err = p.kill(-p.pid, sig)
	}
	if errors.Is(err, unix.ESRCH) && !p.gone {
		err = p.kill(p.pid, sig)
	}
	if errors.Is(err, unix.EPERM) && !p.denied {
		p.denied = true
		p.Warnf("%s can't be signalled, since it runs as another user; put sudo before distlock, not behind it", p.Args[0])
	}
}

// inGroup calls visit for each process in this process's group that the command has started.
func (p *process) inGroup(visit func(pid int)) {
	own := unix.Getpgrp()
	below(p.others, func(pid, group int) {
		if group == own && (pid != p.pid || p.gone) {
			visit(pid)
		}
	})
}

// signalOthers sends to what the command has started in this process's group: a shell does not pass a signal on.
func (p *process) signalOthers(sig syscall.Signal) {
	if p.shared {
		p.inGroup(func(pid int) { _ = p.kill(pid, sig) })
	}
}

// forward sends a signal to the command, or to what it has left.
func (p *process) forward(sig os.Signal) {
	if p.typed(sig) {
		return
	}
	p.signal(sig.(syscall.Signal))
	if p.gone {
		p.signalOthers(sig.(syscall.Signal))
	}
}

// typed reports whether a signal is one of the terminal, which sends it to all of its foreground.
func (p *process) typed(sig os.Signal) bool {
	return p.shared && (sig == unix.SIGINT || sig == unix.SIGQUIT) && inFront()
}

func (p *process) over(told os.Signal) {
	p.gone = true
	if told != nil && p.shared {
		p.forward(told)
	}
}

func (p *process) resume() { p.signal(unix.SIGCONT) }

func (p *process) stop() {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGCONT} {
		p.signal(sig)
		p.signalOthers(sig)
	}
}

// end kills the command and all that it has started. Such a process may start another one before it is killed.
func (p *process) end() {
	p.signal(unix.SIGKILL)
	for range 100 {
		killed := false
		below(p.others, func(pid, _ int) { killed = p.kill(pid, unix.SIGKILL) == nil || killed })
		if !killed {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// left reports whether processes of the command's group are alive. The last ones may be another user's.
func (p *process) left() (alive bool) {
	reap()
	if !p.shared {
		return !errors.Is(p.kill(-p.pid, 0), unix.ESRCH)
	}
	p.inGroup(func(int) { alive = true })
	return alive
}

// catchable returns the signals to forward: all but those about this process's own child, threads and
// stops.
func catchable() []os.Signal {
	var all []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		default:
			all = append(all, n)
		}
	}
	return all
}

// terminal returns a file descriptor of the controlling terminal, or -1.
var terminal = sync.OnceValue(func() int {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// inFront reports whether this process's group is in the foreground of a terminal.
func inFront() bool {
	front, err := unix.IoctlGetInt(terminal(), unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}

// DieOfInterrupt ends this process by SIGINT if its group is in the foreground of a terminal: a shell that got the same
// signal ends its script only if it sees that the signal ended its command. It returns where the signal has no such effect.
func DieOfInterrupt() {
	if !inFront() || signal.Ignored(unix.SIGINT) || os.Getpid() == 1 {
		return
	}
	signal.Reset(unix.SIGINT)
	_ = unix.Kill(os.Getpid(), unix.SIGINT)
	time.Sleep(time.Second) // it has not returned from this yet
}
