//go:build unix

package cli

import (
	"errors"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
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
	asked     <-chan struct{} // notified when another user asks for a lock
	signals   *signals
	warnf     func(format string, args ...any) // must not block: it would delay signals to the command
	flush     func()                           // waits a moment for messages to be written

	interrupted bool // SIGINT ended it
	inFront     bool // its group was then in the foreground, so that this group has not received the signal

	losing  bool           // notice was given, or the lock was lost
	until   time.Time      // the deadline when notice was given
	gaveWay bool           // it was stopped because another user asked for the lock
	toEnd   bool           // a signal of the user asks it to end
	hungUp  time.Time      // when SIGHUP was forwarded
	sent    syscall.Signal // the last one that was forwarded
	denied  bool           // a signal was, and the user was warned
	beside  bool           // another command of this group wanted the terminal, and was stopped
	tty     *terminal
	pid     int // and the number of the group
	states  chan unix.WaitStatus
	kill    func(pid int, sig syscall.Signal) error
}

// run runs the command and returns its exit code. An error means that it could not be started.
func (j *job) run() (int, error) {
	j.tty = controllingTerminal()
	j.states, j.kill = make(chan unix.WaitStatus), unix.Kill
	adoptOrphans()
	j.signals.listen(catchable()...)
	started := make(chan error)
	go j.startAndWait(started)
	if err := <-started; err != nil {
		return 0, cantRun(j.argv[0], err)
	}
	j.tty.stayUnstopped(j.signals)
	state := j.watch()
	j.interrupted = state.Signaled() && state.Signal() == unix.SIGINT
	j.inFront = j.tty.shows(j.pid)
	if j.toEnd || j.gaveWay || j.losing || j.endedBySignal(state) {
		j.clearUp()
	}
	j.tty.takeBack(j.pid)
	if j.beside {
		_ = unix.Kill(0, unix.SIGCONT)
	}
	if state.Signaled() {
		j.tty.restore()
		return exitSignal + int(state.Signal()), nil
	}
	return state.ExitStatus(), nil
}

// endedBySignal reports whether the command has ended by a signal that was forwarded. It may have caught SIGHUP, or only
// have read its configuration again.
func (j *job) endedBySignal(state unix.WaitStatus) bool {
	return state.Signaled() && state.Signal() == j.sent || time.Since(j.hungUp) < hangUpTime
}

// hangUpTime is for how long after SIGHUP an end of the command is taken to be caused by it.
const hangUpTime = 10 * time.Minute

// startAndWait starts the command and waits for it, all on one thread: tieToParent ties a child to the
// thread that started it.
func (j *job) startAndWait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// os.StartProcess would first start a process to find out what the kernel can do.
	pid, err := syscall.ForkExec(j.path, j.argv, &syscall.ProcAttr{
		Env: j.env, Files: []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()}, Sys: j.attributes(),
	})
	j.pid = pid
	started <- err
	if err != nil {
		return
	}
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

// waitFor waits until the process stops or ends. os.Process.Wait does not report stops. It waits for all children, since
// the first process of a container also has those that the command left behind.
func waitFor(pid int) (state unix.WaitStatus, err error) {
	for {
		ended, err := unix.Wait4(-1, &state, unix.WUNTRACED, nil)
		if ended == pid || err != nil && !errors.Is(err, unix.EINTR) {
			return state, err
		}
	}
}

// reap removes children that have ended. If one was stopped since it wants the terminal, its group gets that, and loses it
// with a Ctrl-Z.
func (j *job) reap() {
	for {
		var state unix.WaitStatus
		if pid, err := unix.Wait4(-1, &state, unix.WNOHANG|unix.WUNTRACED, nil); pid <= 0 || err != nil {
			return
		}
		switch by := state.StopSignal(); {
		case !state.Stopped():
		case by == unix.SIGTTIN || by == unix.SIGTTOU:
			j.lend()
		case by == unix.SIGTSTP && j.tty.takeBack(j.pid):
			j.warnf("processes that %s has left are stopped; another signal ends the wait", j.argv[0])
		}
	}
}

// attributes put the command into its own process group, in the foreground if this group is there and
// lends it, and make it die with this process.
func (j *job) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if j.tty.before() && j.tty.lends {
		a.Foreground = true
		a.Ctty = j.tty.fd
	}
	if j.onLoss != lossIgnore {
		tieToParent(a)
	}
	return a
}

// tieToParent makes the command die with this process, where the system can do that.
var tieToParent = func(*syscall.SysProcAttr) {}

// adoptOrphans makes processes of the group that outlive their parent this process's children, where the system can do
// that. Otherwise those that have ended stay in the group until the first process of a container collects them, and
// many never do.
var adoptOrphans = func() {}

// watch handles all events until the command has ended.
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

// stopWhenAsked asks the command to stop. The lock is safe, so there is no hurry.
func (j *job) stopWhenAsked() {
	if j.losing {
		return
	}
	j.gaveWay = true
	j.stop()
	j.warnf("the lock was asked for; stopping %s", j.argv[0])
}

func (j *job) stop() {
	j.signal(unix.SIGTERM)
	j.signal(unix.SIGCONT)
}

// untilNotice returns the time until the command must be stopped. Renewals postpone it.
func (j *job) untilNotice() time.Duration {
	if j.warning == 0 {
		return forever
	}
	return time.Until(firstDeadline(j.lease.Leases())) - j.warning
}

// giveNotice stops the command while the lock is still held. If it is too late for that, because this
// process itself was stopped, lost follows.
func (j *job) giveNotice() {
	left := time.Until(firstDeadline(j.lease.Leases()))
	if j.losing || left <= 0 {
		return
	}
	j.losing, j.until = true, time.Now().Add(left)
	if j.onLoss == lossKill {
		j.signal(unix.SIGKILL)
		j.warnf("the lock can't be renewed; killing %s", j.argv[0])
		return
	}
	j.stop()
	j.warnf("the lock can't be renewed; stopping %s, which has %s left", j.argv[0], short(left))
}

// lost kills the command: another client may have the lock now.
func (j *job) lost() {
	j.losing = true
	if j.onLoss == lossIgnore {
		j.warnf("%s; %s continues without the lock", reason(j.lease.Err()), j.argv[0])
		return
	}
	j.signal(unix.SIGKILL)
	j.warnf("%s; killing %s", reason(j.lease.Err()), j.argv[0])
}

// clearUp waits for processes of the group that outlive their leader after a signal of this process, which may have
// ended the leader first. It kills them when the lock is lost, or was to be lost when notice was given: the server may be
// back since. Another signal to end stops the wait.
func (j *job) clearUp() {
	var end <-chan time.Time
	switch {
	case j.losing && j.onLoss != lossIgnore:
		end = time.After(time.Until(j.until))
	case j.losing:
		return
	}
	lost, slow := j.lease.Context().Done(), time.After(firstReport)
	// The last ones of the group may be another user's.
	for j.reap(); !errors.Is(j.kill(-j.pid, 0), unix.ESRCH); j.reap() {
		select {
		case <-lost:
			if j.losing {
				j.signal(unix.SIGKILL)
			} else {
				j.lost()
			}
			return
		case <-end:
			j.signal(unix.SIGKILL)
			return
		case sig := <-j.signals.ch:
			if j.forward(sig.(syscall.Signal)); end == nil && ends(sig) {
				return
			}
		case <-slow:
			j.tty.takeBack(j.pid) // or the keys would not reach this process
			j.warnf("waiting for processes that %s has left; another signal ends the wait", j.argv[0])
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// signal sends to the group; to the command itself if it has left its group.
func (j *job) signal(sig syscall.Signal) {
	err := j.kill(-j.pid, sig)
	if errors.Is(err, unix.ESRCH) {
		err = j.kill(j.pid, sig)
	}
	if errors.Is(err, unix.EPERM) && !j.denied {
		j.denied = true
		j.warnf("%s can't be signalled, since it runs as another user; put sudo before distlock, not behind it", j.argv[0])
	}
}

// forward sends a signal that this process received to the command.
func (j *job) forward(sig syscall.Signal) {
	switch sig {
	case unix.SIGPIPE: // a closed pipe only drops a message
	case unix.SIGTTIN:
		j.otherReads()
	case unix.SIGCONT:
		j.resume()
	default:
		// Programs that run for long read their configuration again upon SIGHUP.
		j.signal(sig)
		if j.sent = sig; sig == unix.SIGHUP {
			j.hungUp = time.Now()
		}
		if ends(sig) {
			j.toEnd = true
			j.signal(unix.SIGCONT) // a stopped command ends only then
		}
	}
}

// otherReads gives the terminal back to this group, of which another command wants to read from it. That may be a pager
// which the command writes to, so it must not wait for the command's end. The command gets the terminal again if it reads.
func (j *job) otherReads() {
	if j.tty.takeBack(j.pid) {
		j.tty.lends = false
		_ = unix.Kill(0, unix.SIGCONT)
		return
	}
	j.beside = true
}

// ends reports whether a signal of the user asks the command to end.
func ends(sig os.Signal) bool { return sig != unix.SIGHUP && slices.Contains(ending, sig) }

// stopped stops this process, too, if the command was stopped from the terminal, since the shell waits
// for this process. The lock is not renewed meanwhile. A command that was stopped in another way keeps
// its lock. A command that wants the terminal, which this group has, gets it.
func (j *job) stopped(by syscall.Signal) {
	if j.tty == nil || by != unix.SIGTSTP && by != unix.SIGTTIN && by != unix.SIGTTOU {
		return
	}
	if by != unix.SIGTSTP && j.lend() {
		return
	}
	j.tty.takeBack(j.pid)
	if alone() {
		j.resume()
		return
	}
	j.warnf("stopped; the lock will be lost unless continued within %s", short(time.Until(firstDeadline(j.lease.Leases()))))
	j.flush()
	// The whole job stops, as it would without distlock.
	_ = unix.Kill(0, unix.SIGSTOP)
}

// lend gives the terminal to the command's group if this one has it, and reports whether it did.
func (j *job) lend() bool {
	if !j.tty.before() {
		return false
	}
	j.tty.lends = true
	if !j.tty.give(j.pid) {
		return false
	}
	j.resume()
	return true
}

// resume continues the command, unless the lock was lost meanwhile: then watch kills it.
func (j *job) resume() {
	if j.onLoss != lossIgnore && j.lease.Err() != nil {
		return
	}
	j.tty.give(j.pid)
	j.signal(unix.SIGCONT)
}

// catchable returns the signals to forward: all but those about this process's own child, threads and
// terminal.
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

// terminal is the controlling terminal. Only the foreground group may read from it and gets its Ctrl-C.
// Methods of nil do nothing.
type terminal struct {
	fd    int
	own   int  // this process's group
	lends bool // the command's group takes this group's place in the foreground
	state *term.State
}

// controllingTerminal returns the terminal, or nil. It is lent to the command from the start if it is the standard
// input: otherwise another command of the pipeline may need it first.
func controllingTerminal() *terminal {
	t := &terminal{fd: int(os.Stdin.Fd()), own: unix.Getpgrp(), lends: true}
	if _, err := t.group(); err != nil {
		t.fd, t.lends = openTerminal(), false
	}
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

// openTerminal returns a file descriptor of the terminal, or -1.
var openTerminal = sync.OnceValue(func() int {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// group returns the foreground group.
func (t *terminal) group() (int, error) { return unix.IoctlGetInt(t.fd, unix.TIOCGPGRP) }

// before reports whether this process's group is in the foreground.
func (t *terminal) before() bool { return t != nil && t.shows(t.own) }

// shows reports whether a group is in the foreground.
func (t *terminal) shows(group int) bool {
	if t == nil {
		return false
	}
	now, err := t.group()
	return err == nil && now == group
}

// give puts the command's group into the foreground if this one is there and lends it, and reports whether it did.
func (t *terminal) give(group int) bool { return t.before() && t.lends && t.put(group) == nil }

// takeBack puts this group into the foreground if the command's is there, and reports whether it did. The shell repairs
// a failure.
func (t *terminal) takeBack(group int) bool { return t.shows(group) && t.put(t.own) == nil }

// stayUnstopped lets this process write to the terminal, and change the foreground group, while it is in
// the background, and go on renewing when another command of its pipeline wants to read from the terminal. It must be
// called after the command was started, which would inherit it. Commands of later terms do inherit it. Those that
// start in the foreground don't notice; the others may set the terminal's state before they are lent it, but not read from it.
func (t *terminal) stayUnstopped(s *signals) {
	if t != nil {
		signal.Ignore(unix.SIGTTOU)
		s.listen(unix.SIGTTIN)
	}
}

// put sets the foreground group.
func (t *terminal) put(group int) error { return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) }

// restore undoes the changes of a killed command to the state of a terminal that it was lent. In the background
// it would undo those of another command.
func (t *terminal) restore() {
	if t.before() && t.lends {
		_ = term.Restore(t.fd, t.state)
	}
}

// Ctrl-Z stops this process while there is no command, which the signal would be for. Once a
// program has caught SIGTSTP, Go's runtime no longer lets the system do this, also after signal.Reset.
func init() {
	stopUpon = func(sig os.Signal) {
		if sig == unix.SIGTSTP && !alone() {
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		}
	}
}

// alone reports whether this group leads the session: no shell could continue it if it stopped.
func alone() bool {
	session, err := unix.Getsid(0)
	return err == nil && session == unix.Getpgrp()
}

// dieOfInterrupt ends this process by SIGINT if its group is in the foreground: a shell ends its script only
// if it receives the signal itself and sees that the signal ended its command. At the terminal, the shell has received it,
// unless only the command's group was in the foreground: then all of this group are to get it. The function returns where
// the signal has no such effect.
func dieOfInterrupt(all bool) {
	if signal.Ignored(unix.SIGINT) || os.Getpid() == 1 || !controllingTerminal().before() {
		return
	}
	signal.Reset(unix.SIGINT)
	pid := os.Getpid()
	if all {
		pid = 0
	}
	_ = unix.Kill(pid, unix.SIGINT)
	time.Sleep(time.Second) // it has not returned from this yet
}

// listenPrivately makes a socket that only this user can reach.
func listenPrivately(path string) (net.Listener, error) {
	defer unix.Umask(unix.Umask(0o177))
	return net.Listen("unix", path)
}
