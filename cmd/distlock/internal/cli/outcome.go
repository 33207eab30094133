package cli

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/cmd/distlock/internal/job"
	"github.com/distlock/distlock/driver"
)

// outcome is how a command under locks ended.
type outcome int

const (
	over    outcome = iota // by itself or by a signal of the user, and it is not to run again
	exited                 // by itself, and it is to run again
	gaveWay                // it was stopped because another user asked for the lock
	lost                   // it was stopped because the lock was lost
)

// outcomeOf returns end, or over if the command is not to run again.
func (o *runOptions) outcomeOf(r job.Result, end outcome) outcome {
	if end == lost && o.onLoss == job.Ignore {
		end = exited // much later
	}
	if o.verb != "elect" || r.Told || fromTerminal(r.Code) || end == exited && !o.again {
		return over
	}
	return end
}

// fromTerminal reports whether a command was ended by a signal that a terminal sends, and sends to no
// other process.
func fromTerminal(code int) bool {
	return slices.ContainsFunc([]os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT}, func(sig os.Signal) bool {
		return code == signalCode(sig)
	})
}

// nextCampaign reports how a term ended, and returns how long to stay away from the election. It is
// the rule of distlock.Election, whose campaign lacks run's signals, messages and other kinds of locks.
func (a *app) nextCampaign(t *acquirer, end outcome, err error) time.Duration {
	t.reset()
	switch end {
	case lost:
		a.warn(err)
		return 0
	case exited:
		a.warnf("%s ended with exit code %d; campaigning again", t.o.command[0], codeOf(err))
	}
	return driver.TurnLife
}

// verbosef prints a message if --verbose is set.
func (a *app) verbosef(o *runOptions, format string, args ...any) {
	if o.verbose {
		a.warnf(format, args...)
	}
}

// reset prepares for the next campaign.
func (a *acquirer) reset() {
	a.began = time.Now()
	select {
	case <-a.asked: // about the term that is over
	default:
	}
}

// namesake returns the program of another job on this host that holds the lock of a scheduled one; "" if there is none.
func (o *runOptions) namesake(err error) string {
	var held *distlock.HeldError
	if host, _ := os.Hostname(); o.verb == "cron" && errors.As(err, &held) {
		line := o.clientOptions(nil).Meta["line"]
		for _, h := range held.Holders {
			other, same := h.Meta["program"], h.Meta["line"] == "" || line == "" || h.Meta["line"] == line
			if h.Meta["host"] == host && other != "" && (other != o.program() || !same) {
				return other
			}
		}
	}
	return ""
}

// outcomeOfWait returns the result of a run that did not get the lock.
func (a *app) outcomeOfWait(o *runOptions, err error) error {
	if !errors.Is(err, distlock.ErrHeld) {
		return err
	}
	if o.skipOK {
		if other := o.namesake(err); other != "" {
			a.warnf("skipped: another job of this host, %s, has lock %s: jobs that share a name take turns; want a name for each", quoted(other), quoted(o.names[0]))
		} else if errors.Is(err, errWatched) {
			a.warnf("skipped: %w", err)
		} else {
			a.verbosef(o, "skipped: %w", err)
		}
		return nil
	}
	return &exitError{code: o.busyCode, err: err}
}
