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
	shared bool // it is in this process's group
	ended  chan status
	denied bool // a signal was, and the user was warned
	kill   func(pid int, sig syscall.Signal) error
}

func (c *Command) start() (*process, error) {
	p := &process{Command: c, shared: terminal() >= 0, ended: make(chan status, 1), kill: unix.Kill}
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

// below calls visit for each living process that the command has started, or that one of these has, where the system can
// tell.
var below = func(visit func(pid, group int)) {}

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
	if errors.Is(err, unix.ESRCH) {
		err = p.kill(p.pid, sig)
	}
	if errors.Is(err, unix.EPERM) && !p.denied {
		p.denied = true
		p.Warnf("%s can't be signalled, since it runs as another user; put sudo before distlock, not behind it", p.Args[0])
	}
}

// forward sends a signal to the command. The terminal has sent it what its keys and its size mean.
func (p *process) forward(sig os.Signal) {
	if p.shared && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGWINCH) {
		return
	}
	p.signal(sig.(syscall.Signal))
}

func (p *process) resume() { p.signal(unix.SIGCONT) }

func (p *process) stop() {
	p.signal(unix.SIGTERM)
	p.resume()
}

// end kills the command and all that it has started. Such a process may start another one before it is killed.
func (p *process) end() {
	p.signal(unix.SIGKILL)
	for range 100 {
		killed := false
		below(func(pid, _ int) { killed = p.kill(pid, unix.SIGKILL) == nil || killed })
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
	own := unix.Getpgrp()
	below(func(_, group int) { alive = alive || group == own })
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

// DieOfInterrupt ends this process by SIGINT if its group is in the foreground of a terminal: a shell that got the same
// signal ends its script only if it sees that the signal ended its command. It returns where the signal has no such effect.
func DieOfInterrupt() {
	front, err := unix.IoctlGetInt(terminal(), unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() || signal.Ignored(unix.SIGINT) || os.Getpid() == 1 {
		return
	}
	signal.Reset(unix.SIGINT)
	_ = unix.Kill(os.Getpid(), unix.SIGINT)
	time.Sleep(time.Second) // it has not returned from this yet
}
