// Package gocronlock lets the schedulers of gocron on many hosts run each job once.
//
// With a Locker, each run of a job is taken by one scheduler, whichever is first. With an Elector, one scheduler
// runs all jobs until it ends.
package gocronlock

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/distlock/distlock"
	"github.com/go-co-op/gocron/v2"
)

var (
	_ gocron.Locker  = (*Locker)(nil)
	_ gocron.Elector = (*Elector)(nil)
)

// Locker is for gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. It is safe for concurrent use.
type Locker struct {
	c      *distlock.Client
	prefix string
	opts   []distlock.LockOption
}

// NewLocker returns a Locker. A job's lock is named by the prefix and the name of the job, which it should have
// (gocron.WithName): without one, its function's name is its name.
//
// Hosts' clocks differ, so that one scheduler may begin when another has ended a short job. The option
// distlock.MinHold holds the lock for a while after the job's start; choose more than the clocks differ and less than
// the time between two runs.
func NewLocker(c *distlock.Client, prefix string, opts ...distlock.LockOption) *Locker {
	return &Locker{c, prefix, opts}
}

// Lock takes the lock of a job if it is free. Otherwise it returns ErrHeld, and gocron does not run the job
// here. The job is not told if the lock is lost: its lease's Fence protects what it writes, if it uses
// a lock of its own for that.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := l.c.Mutex(l.prefix+job, l.opts...).TryLock(ctx)
	if err != nil {
		return nil, err // and no lease in an interface
	}
	return lease, nil
}

// Elector is for gocron.WithDistributedElector. It is safe for concurrent use.
type Elector struct {
	term atomic.Pointer[distlock.Lease] // nil while this elector does not lead
	stop context.CancelFunc
	done chan struct{}
	err  error // valid after done
}

// ErrNotLeader is returned by IsLeader in a process that must not run jobs.
var ErrNotLeader = errors.New("gocronlock: another scheduler leads, or none")

// NewElector campaigns in the background, until Close. The scheduler's jobs run here while it leads.
func NewElector(e *distlock.Election) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	x := &Elector{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		err := e.Lead(ctx, func(term context.Context) error {
			x.term.Store(distlock.FromContext(term))
			defer x.term.Store(nil)
			<-term.Done()
			return nil
		})
		if ctx.Err() != nil {
			err = resignation(err)
		}
		x.err = err
	}()
	return x
}

// resignation returns what a Lead that was cut short says about its release.
func resignation(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if _, waited := err.(*distlock.Error); !ok || waited && errors.Is(err, context.Canceled) {
		return nil // it did not lead
	}
	var failed []error
	for _, err := range joined.Unwrap() {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, distlock.ErrLost) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// IsLeader returns nil while this elector leads, else ErrNotLeader, or why it can't campaign. It asks no server. A job
// that has begun runs on if the term ends.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.term.Load(); lease != nil && lease.Err() == nil {
		return nil
	}
	select {
	case <-e.done:
		return errors.Join(ErrNotLeader, e.err)
	default:
		return ErrNotLeader
	}
}

// Close resigns, and returns when another scheduler can lead. If the lock can't be released, Close returns why,
// and another one can lead after the lock's TTL at the latest.
func (e *Elector) Close() error {
	e.stop()
	<-e.done
	return e.err
}
