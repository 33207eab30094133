//go:build unix

package job

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kept is a lock that is never lost.
type kept struct{}

func (kept) Context() context.Context { return context.Background() }
func (kept) Deadline() time.Time      { return time.Now().Add(time.Hour) }
func (kept) Lost() string             { return "" }

// A command of another user, as of sudo, can't be signalled: the user is told, once.
func TestCommandOfAnotherUser(t *testing.T) {
	var said []string
	c := &Command{Args: []string{"sudo"}, Warnf: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	p := &process{Command: c, pid: 1 << 30, kill: func(int, syscall.Signal) error { return syscall.EPERM }}
	p.stop()
	if len(said) != 1 || !strings.Contains(said[0], "sudo can't be signalled") {
		t.Errorf("got %q", said)
	}
}

// A process of the group that may not be signalled, as another user's, is waited for.
func TestGroupOfAnotherUser(t *testing.T) {
	calls := 0
	c := &Command{Args: []string{"sudo"}, Lock: kept{}, Warnf: func(string, ...any) {}}
	r := &run{Command: c, Result: Result{Told: true}, process: &process{Command: c, pid: 1 << 30, kill: func(int, syscall.Signal) error {
		if calls++; calls < 4 {
			return syscall.EPERM
		}
		return syscall.ESRCH
	}}}
	if r.clearUp(); calls != 4 {
		t.Errorf("the wait has ended after %d calls", calls)
	}
}

// The pid of a command that has ended may be another process's. At a terminal its group does not keep it in use.
func TestEndedCommandIsNotSignalled(t *testing.T) {
	c := &Command{Args: []string{"sh"}, Lock: kept{}, Warnf: t.Logf}
	p := &process{Command: c, pid: 1 << 30, shared: true, kill: func(pid int, sig syscall.Signal) error {
		t.Errorf("%v to %d", sig, pid)
		return nil
	}}
	p.over(nil)
	p.forward(syscall.SIGTERM)
	p.resume()
	p.end()
}

// A signal that arrives together with the end of the command that it caused is heeded.
func TestSignalWithTheEnd(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	c := &Command{Args: []string{"sh"}, Lock: kept{}, Signals: signals, Warnf: t.Logf}
	r := &run{Command: c, process: &process{Command: c, pid: 1 << 30, kill: func(int, syscall.Signal) error { return syscall.ESRCH }}}
	if r.finish(status{code: 143, by: syscall.SIGTERM}); !r.Told {
		t.Error("it was taken for an end without a signal")
	}
}
