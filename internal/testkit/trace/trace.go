// Package trace records what is asked of a backend and what it answers, so that package model can
// judge whether the protocol's specification allows it.
package trace

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Event is a call, its return, or a lease that was handed to a user.
type Event struct {
	Is     string        // "call", "return" or "lease"
	At     time.Duration // as the recorder's clock says
	Call   int           // the number of the call; for a lease 0
	Kind   string        // of a call: "acquire", "renew" or "release"
	Name   string
	Owner  string
	Mode   driver.Mode
	TTL    time.Duration // of a call; of a lease: for how long it is trusted
	Queue  bool
	Answer string // of a return: "granted", "renewed", "released", "held", "lost", "unsent" or "unknown"
	Fence  uint64 // of a grant or lease
	Last   uint64 // of a grant
}

// Recorder records the calls of several backends. Any goroutine may call its methods.
type Recorder struct {
	clock func() time.Duration
	write func(Event)

	mu    sync.Mutex
	calls int
}

// New returns a recorder that passes events to write, one at a time and in their order. Recorders of several processes
// need one clock.
func New(clock func() time.Duration, write func(Event)) *Recorder {
	return &Recorder{clock: clock, write: write}
}

// Lease records that a user has a *distlock.Lease.
func (r *Recorder) Lease(l interface {
	Name() string
	Owner() string
	Fence() uint64
	Mode() driver.Mode
	Deadline() time.Time
}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := Event{Is: "lease", At: r.clock(), Name: l.Name(), Owner: l.Owner(), Mode: l.Mode(), Fence: l.Fence()}
	e.TTL = max(0, time.Until(l.Deadline())) // after the clock was read: a pause between makes it less
	r.write(e)
}

// add records an event that happens now. mu is held.
func (r *Recorder) add(e Event) {
	e.At = r.clock()
	r.write(e)
}

// call records a call, and returns its return to be filled in.
func (r *Recorder) call(kind string, h driver.Hold, queue bool) Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	e := Event{Is: "call", Call: r.calls, Kind: kind, Name: h.Name, Owner: h.Owner, Mode: h.Mode, TTL: h.TTL, Queue: queue}
	r.add(e)
	e.Is = "return"
	return e
}

// answer records a return. good is the answer without an error.
func (r *Recorder) answer(e Event, good string, err error) {
	switch {
	case err == nil:
		e.Answer = good
	case errors.Is(err, driver.ErrHeld):
		e.Answer = "held"
	case errors.Is(err, driver.ErrLost):
		e.Answer = "lost"
	case errors.Is(err, driver.ErrUnsent) || driver.Final(err):
		e.Answer = "unsent"
	default:
		e.Answer = "unknown"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(e)
}

// Backend returns b with its attempts, renewals and releases recorded. Watches are passed on: a backend
// that takes locks in them can't be recorded.
func (r *Recorder) Backend(b driver.Backend) driver.Backend { return &backend{b, r} }

type backend struct {
	driver.Backend
	r *Recorder
}

func (b *backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	e := b.r.call("acquire", r.Hold, r.Queue)
	g, err := b.Backend.Acquire(ctx, r)
	if err == nil {
		e.Fence, e.Last = g.Fence, g.Last()
	}
	b.r.answer(e, "granted", err)
	return g, err
}

func (b *backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	var calls []Event
	for _, h := range holds {
		calls = append(calls, b.r.call("renew", h, false))
	}
	errs := b.Backend.Renew(ctx, holds)
	for i, e := range calls {
		b.r.answer(e, "renewed", errs[i])
	}
	return errs
}

func (b *backend) Release(ctx context.Context, h driver.Hold) error {
	e := b.r.call("release", h, false)
	err := b.Backend.Release(ctx, h)
	b.r.answer(e, "released", err)
	return err
}

func (b *backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if w, ok := b.Backend.(driver.Watcher); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}
