package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// signals are the signals that the program received, in their order.
type signals struct {
	ch      chan os.Signal
	late    error // the result after a signal during the release of the locks
	aborted error // the same, if it ended the release
}

// ending are the signals that ask a program to end.
var ending = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// newSignals catches the signals that end a wait, and those that would end the program before it releases its locks:
// a closed pipe is an error of the write.
func newSignals() *signals {
	s := &signals{ch: make(chan os.Signal, 64)}
	s.listen(ending...)
	s.listen(syscall.SIGPIPE)
	return s
}

// listen catches more signals, except those that the program was started to ignore, as with nohup:
// the command must inherit that.
func (s *signals) listen(more ...os.Signal) {
	for _, sig := range more {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
}

// interrupt returns a context that ends with the next signal that ends programs. After end, signals are kept for the
// command.
func (s *signals) interrupt(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			select {
			case sig := <-s.ch:
				if slices.Contains(ending, sig) { // others are for a command
					cancel(caught{sig})
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(done)
		<-gone
		cancel(nil)
	})
}

// interruptible returns a context that ends with SIGINT or SIGTERM. After end, they end the program.
func interruptible() (ctx context.Context, end func()) {
	s := &signals{ch: make(chan os.Signal, 1)}
	signal.Notify(s.ch, os.Interrupt, syscall.SIGTERM)
	ctx, endWait := s.interrupt(context.Background())
	return ctx, func() {
		signal.Stop(s.ch)
		endWait()
	}
}

// lastMoment is enough for a server to answer. A signal that also went to the command, and arrives
// after it has ended, must not keep the lock from being released.
const lastMoment = 100 * time.Millisecond

// giveBack runs f, which releases locks, for at most limit, and only for a moment longer after a
// signal that ends programs. Locks that are not released expire with their TTL.
func (s *signals) giveBack(limit time.Duration, f func() error) error {
	if s.aborted != nil {
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
			if by == nil && slices.Contains(ending, sig) {
				by = endedBy(sig)
				s.late = by
				timeUp = time.After(lastMoment)
			}
		case <-timeUp:
			s.aborted = by
			return nil
		}
	}
}

// caught is the cause of a context that a signal ended.
type caught struct{ sig os.Signal }

func (c caught) Error() string { return fmt.Sprintf("caught signal: %v", c.sig) }

// caughtBy returns the result after the signal that ended ctx, or nil.
func caughtBy(ctx context.Context) error {
	c, ok := context.Cause(ctx).(caught)
	if !ok {
		return nil
	}
	return endedBy(c.sig)
}

// unlessCaught returns err or, if a signal ended ctx and so may be the reason for err, the result after it.
func unlessCaught(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return cmp.Or(caughtBy(ctx), err)
}

// endedBy returns the result after a signal.
func endedBy(sig os.Signal) error {
	return &exitError{code: signalCode(sig), interrupted: sig == os.Interrupt}
}

// signalCode returns the exit code after a signal.
func signalCode(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitFailure
}
