package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// signals is what others tell the program by signals, in their order.
type signals struct {
	ch      chan os.Signal
	hurried error // the silent end by a signal that came while locks were given back
}

// newSignals begins to listen to those that end a wait.
func newSignals() *signals {
	s := &signals{ch: make(chan os.Signal, 64)}
	s.listen(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	return s
}

// listen adds signals, but for those that the program was started to ignore, as
// nohup does: the command must inherit that.
func (s *signals) listen(more ...os.Signal) {
	for _, sig := range more {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
}

// interrupt is a context that ends with the next signal, until end is called: then
// signals wait for the command.
func (s *signals) interrupt(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case sig := <-s.ch:
			cancel(caught{sig})
		case <-done:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(done)
		<-gone
		cancel(nil)
	})
}

// moment is what a server that answers needs. It keeps a signal that was sent to the
// command too, and comes when that has ended, from leaving the lock behind.
const moment = 100 * time.Millisecond

// giveBack runs f, which gives back what the server keeps, for no longer than limit,
// and only for a moment more after a signal that ends programs. What is not given
// back ends with its TTL.
func (s *signals) giveBack(limit time.Duration, f func() error) error {
	if s.hurried != nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	timeUp := time.After(limit)
	var by error
	for {
		select {
		case err := <-done:
			return err
		case sig := <-s.ch:
			if by == nil && ends(sig) {
				by = &exitError{code: signalCode(sig)}
				timeUp = time.After(moment)
			}
		case <-timeUp:
			s.hurried = by
			return nil
		}
	}
}

// ends reports whether a signal asks a program to end.
func ends(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, sig)
}

// sleep waits for d or a signal.
func (s *signals) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-s.ch:
	case <-time.After(d):
	}
}

// caught is the cause of a context that a signal ended.
type caught struct{ sig os.Signal }

func (c caught) Error() string { return fmt.Sprintf("caught signal: %v", c.sig) }

// caughtBy is the silent end by the signal that ended ctx, or nil.
func caughtBy(ctx context.Context) error {
	c, ok := context.Cause(ctx).(caught)
	if !ok {
		return nil
	}
	return &exitError{code: signalCode(c.sig)}
}

// signalCode is the exit code of what a signal ended.
func signalCode(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitFailure
}
