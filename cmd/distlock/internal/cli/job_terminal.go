//go:build unix

package cli

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

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
