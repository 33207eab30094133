package quorum_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

var errReset = errors.New("connection reset")

// wire is what lies between one process and the members: each can be cut off, so that
// calls get no answer, and answers can be lost at random.
type wire struct {
	gates []gate
	calls atomic.Int64

	loss atomic.Int64 // answers lost, in percent; half as many requests
}

// gate is closed while a member is cut off.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: open
	dead bool          // calls fail at once
}

func newWire(n int) *wire { return &wire{gates: make([]gate, n)} }

func (w *wire) to(member int, b *memlock.Backend) *link { return &link{b, w, member} }

func (w *wire) cut(members ...int) {
	for _, g := range w.pick(members) {
		g.mu.Lock()
		if g.open == nil {
			g.open = make(chan struct{})
		}
		g.mu.Unlock()
	}
}

func (w *wire) restore() {
	for i := range w.gates {
		g := &w.gates[i]
		g.mu.Lock()
		if g.dead = false; g.open != nil {
			close(g.open)
			g.open = nil
		}
		g.mu.Unlock()
	}
}

func (w *wire) kill(members ...int) {
	for _, g := range w.pick(members) {
		g.mu.Lock()
		g.dead = true
		g.mu.Unlock()
	}
}

// pick is all if none is named.
func (w *wire) pick(members []int) []*gate {
	var all []*gate
	for i := range w.gates {
		all = append(all, &w.gates[i])
	}
	if len(members) == 0 {
		return all
	}
	var some []*gate
	for _, i := range members {
		some = append(some, all[i])
	}
	return some
}

// link is a connection over a wire.
type link struct {
	*memlock.Backend
	w      *wire
	member int
}

// Caps deny what a quorum has no use for.
func (l *link) Caps() driver.Caps {
	c := l.Backend.Caps()
	c.Line = driver.Never
	return c
}

// pass carries a call to the member and its answer back.
func (l *link) pass(ctx context.Context, call func()) error {
	l.w.calls.Add(1)
	if err := l.through(ctx); err != nil {
		return err
	}
	lossy := rand.Int64N(100) < l.w.loss.Load()
	if lossy && rand.N(3) == 0 {
		return errReset
	}
	call()
	if lossy {
		return errReset
	}
	return l.through(ctx)
}

func (l *link) through(ctx context.Context) error {
	g := &l.w.gates[l.member]
	g.mu.Lock()
	open, dead := g.open, g.dead
	g.mu.Unlock()
	if dead {
		return errReset
	}
	if open == nil {
		return nil
	}
	select {
	case <-open:
		return errReset
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	if lost := l.pass(ctx, func() { g, err = l.Backend.Acquire(ctx, r) }); lost != nil {
		return driver.Grant{}, lost
	}
	return g, err
}

func (l *link) Renew(ctx context.Context, holds []driver.Hold) (errs []error) {
	if lost := l.pass(ctx, func() { errs = l.Backend.Renew(ctx, holds) }); lost != nil {
		errs = make([]error, len(holds))
		for i := range errs {
			errs[i] = lost
		}
	}
	return errs
}

func (l *link) Release(ctx context.Context, h driver.Hold) (err error) {
	if lost := l.pass(ctx, func() { err = l.Backend.Release(ctx, h) }); lost != nil {
		return lost
	}
	return err
}

func (l *link) Watch(ctx context.Context, r driver.Request) (w driver.Watch, err error) {
	if err := l.through(ctx); err != nil {
		return w, err
	}
	return l.Backend.Watch(ctx, r)
}

func (l *link) Inspect(ctx context.Context, name string) (info driver.Info, err error) {
	if err := l.through(ctx); err != nil {
		return info, err
	}
	return l.Backend.Inspect(ctx, name)
}
