//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/distlock/distlock"
)

// job is a command that runs under locks, in a process group of its own.
type job struct {
	path      string
	argv, env []string
	onLoss    string
	warning   time.Duration // how long before the deadline to give notice; 0: never
	lease     *distlock.MultiLease
	asked     <-chan struct{} // somebody asks for a lock
	signals   *signals
	warnf     func(format string, args ...any)

	losing bool // notice was given, or the lock was lost
	tty    *terminal
	pid    int // and the number of the group
	states chan unix.WaitStatus
}

// run runs the command to its end, and returns its exit code. An error means that
// it could not be started.
func (j *job) run() (int, error) {
	j.tty = stdinTerminal()
	j.states = make(chan unix.WaitStatus)
	j.signals.listen(catchable()...)
	started := make(chan error)
	go j.startAndWait(started)
	if err := <-started; err != nil {
		return 0, cantRun(j.argv[0], err)
	}
	j.tty.stayUnstopped()
	state := j.watch()
	j.clearUp()
	j.tty.takeBack(j.pid)
	if state.Signaled() {
		j.tty.restore()
		return exitSignal + int(state.Signal()), nil
	}
	return state.ExitStatus(), nil
}

// startAndWait starts the command and waits for it, all on one thread: where a child's
// life can be tied to its parent's, it is tied to the thread that started it.
func (j *job) startAndWait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess(j.path, j.argv, &os.ProcAttr{
		Env: j.env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: j.attributes(),
	})
	if err != nil {
		started <- err
		return
	}
	j.pid = p.Pid
	started <- nil
	for {
		state, err := waitFor(j.pid)
		if err != nil {
			j.warnf("%s: can't tell how it ended: %w", j.argv[0], err)
			state = exitFailure << 8 // as if it had ended with that code
		}
		j.states <- state
		if !state.Stopped() {
			return
		}
	}
}

// waitFor waits until the process stops or ends. It is used in place of
// os.Process.Wait, which tells nothing of stops.
func waitFor(pid int) (state unix.WaitStatus, err error) {
	for {
		_, err = unix.Wait4(pid, &state, unix.WUNTRACED, nil)
		if !errors.Is(err, unix.EINTR) {
			return state, err
		}
	}
}

// attributes put the command into a group of its own, before the terminal if that
// is where this group stands, and let it die with this process.
func (j *job) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if j.tty.before() {
		a.Foreground = true
		a.Ctty = j.tty.fd
	}
	if j.onLoss != lossIgnore {
		tieToParent(a)
	}
	return a
}

// watch sees to the command until it has ended.
func (j *job) watch() unix.WaitStatus {
	lost := j.lease.Context().Done()
	deadline := time.NewTimer(j.untilNotice())
	defer deadline.Stop()
	for {
		select {
		case state := <-j.states:
			if !state.Stopped() {
				return state
			}
			j.stopped(state.StopSignal())
		case sig := <-j.signals.ch:
			j.forward(sig.(syscall.Signal))
		case <-deadline.C:
			if d := j.untilNotice(); d > 0 {
				deadline.Reset(d)
			} else {
				j.giveNotice()
			}
		case <-j.asked:
			j.stopWhenAsked()
		case <-lost:
			lost = nil
			j.lost()
		}
	}
}

// stopWhenAsked tells the command to stop, which it may do in its own time: the lock is
// safe.
func (j *job) stopWhenAsked() {
	if j.losing {
		return
	}
	j.warnf("somebody asks for the lock; stopping %s", j.argv[0])
	j.stop()
}

func (j *job) stop() {
	j.signal(unix.SIGTERM)
	j.signal(unix.SIGCONT)
}

// untilNotice is how long the leases are safe. Renewals move it on.
func (j *job) untilNotice() time.Duration {
	if j.warning == 0 {
		return forever
	}
	return time.Until(firstDeadline(j.lease.Leases())) - j.warning
}

// giveNotice tells the command to stop while the lock is still held. If it is too
// late for that, because this process was stopped itself, lost follows.
func (j *job) giveNotice() {
	left := time.Until(firstDeadline(j.lease.Leases()))
	if j.losing || left <= 0 {
		return
	}
	j.losing = true
	if j.onLoss == lossKill {
		j.warnf("the lock can't be renewed; killing %s", j.argv[0])
		j.signal(unix.SIGKILL)
		return
	}
	j.warnf("the lock can't be renewed; stopping %s, which has %s to end", j.argv[0], short(left))
	j.stop()
}

// lost ends the command at once: the lock may belong to someone else now.
func (j *job) lost() {
	j.losing = true
	if j.onLoss == lossIgnore {
		j.warnf("%s; %s goes on without the lock", reason(j.lease.Err()), j.argv[0])
		return
	}
	j.warnf("%s; killing %s", reason(j.lease.Err()), j.argv[0])
	j.signal(unix.SIGKILL)
}

// clearUp sees to it that nothing of the group outlives a lock that is being lost.
func (j *job) clearUp() {
	if !j.losing || j.onLoss == lossIgnore {
		return
	}
	lost := j.lease.Context().Done()
	for unix.Kill(-j.pid, 0) == nil {
		select {
		case <-lost:
			j.signal(unix.SIGKILL)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// signal sends to the group; to the command itself if it has left its group.
func (j *job) signal(sig syscall.Signal) {
	if err := unix.Kill(-j.pid, sig); errors.Is(err, unix.ESRCH) {
		// It may have ended by itself: then there is nobody to tell.
		_ = unix.Kill(j.pid, sig)
	}
}

// forward passes on a signal that this process got.
func (j *job) forward(sig syscall.Signal) {
	switch sig {
	case unix.SIGPIPE: // caught so that a closed pipe ends a message and no more
	case unix.SIGCONT:
		j.resume()
	default:
		j.signal(sig)
	}
}

// stopped follows a command that was stopped from the terminal: the shell behind
// it waits for this process. Nothing is renewed from then on. A command that was
// stopped otherwise keeps its lock.
func (j *job) stopped(by syscall.Signal) {
	if j.tty == nil || by != unix.SIGTSTP && by != unix.SIGTTIN && by != unix.SIGTTOU {
		return
	}
	j.tty.takeBack(j.pid)
	if alone() {
		j.resume()
		return
	}
	j.warnf("stopped; the lock is lost if it is not continued within %s", short(time.Until(firstDeadline(j.lease.Leases()))))
	// The whole job stops, as it would have without distlock.
	_ = unix.Kill(0, unix.SIGSTOP)
}

// resume continues the command, unless the lock was lost meanwhile: then watch
// kills it.
func (j *job) resume() {
	if j.onLoss != lossIgnore && j.lease.Err() != nil {
		return
	}
	j.tty.give(j.pid)
	j.signal(unix.SIGCONT)
}

// catchable are the signals that are passed on: all but those that tell this
// process of its own child, thread, pipe or terminal.
func catchable() []os.Signal {
	var all []os.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGTTIN, unix.SIGTTOU:
		default:
			all = append(all, n)
		}
	}
	return all
}

// terminal is the controlling terminal on standard input. Only the group that
// stands before it may read from it and gets its ctrl-C. Methods of nil do nothing.
type terminal struct {
	fd    int
	own   int // this process's group
	state *term.State
}

func stdinTerminal() *terminal {
	t := &terminal{fd: int(os.Stdin.Fd()), own: unix.Getpgrp()}
	if _, err := t.group(); err != nil {
		return nil
	}
	state, err := term.GetState(t.fd)
	if err != nil {
		return nil
	}
	t.state = state
	return t
}

// group is the group that stands before the terminal.
func (t *terminal) group() (int, error) { return unix.IoctlGetInt(t.fd, unix.TIOCGPGRP) }

// before reports whether this process's group stands before the terminal, and not,
// say, a shell that started it in the background.
func (t *terminal) before() bool {
	if t == nil {
		return false
	}
	group, err := t.group()
	return err == nil && group == t.own
}

// give puts the command's group before the terminal if this one stands there.
func (t *terminal) give(group int) {
	if t.before() {
		t.put(group)
	}
}

// takeBack puts this group where the command's stands.
func (t *terminal) takeBack(group int) {
	if t == nil {
		return
	}
	if now, err := t.group(); err == nil && now == group {
		t.put(t.own)
	}
}

// stayUnstopped lets this process write to the terminal, and change who stands before
// it, while the command's group does. To be called after the command was started,
// which would inherit it.
func (t *terminal) stayUnstopped() {
	if t != nil {
		signal.Ignore(unix.SIGTTOU)
	}
}

// put changes who stands before the terminal. What fails is left to the shell.
func (t *terminal) put(group int) {
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

// restore undoes what a command that was killed did to the terminal.
func (t *terminal) restore() {
	if t != nil {
		_ = term.Restore(t.fd, t.state)
	}
}

// alone reports whether no shell could continue this process if it stopped: it
// leads the session itself.
func alone() bool {
	session, err := unix.Getsid(0)
	return err == nil && session == os.Getpid()
}
