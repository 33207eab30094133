package distlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// lock waits until the lock is held or ctx is done.
func (l lock) lock(ctx context.Context, op string) (*Lease, error) {
	lease, err := l.wait(ctx, op)
	lease.recordStack()
	return lease, err
}

// wait is lock without a stack, for leases that can't leak.
func (l lock) wait(ctx context.Context, op string) (*Lease, error) {
	if lease, err := l.begin(ctx, op); lease != nil || err != nil {
		return lease, err
	}
	if err := l.waitsForItself(ctx); err != nil {
		return nil, fail(op, l.s.name, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	k := &contender{c: l.c, s: l.s, op: op, ctx: ctx, start: l.c.now()}
	if l.s.fair {
		return k.contend()
	}
	return k.standInLine()
}

// bounded returns the context of a wait: ctx, which WaitAtMost may end sooner.
func (l lock) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.s.waitAtMost == 0 {
		return ctx, func() {}
	}
	wait, cancel := context.WithTimeoutCause(ctx, l.s.waitAtMost, fmt.Errorf("it waited for %v", l.s.waitAtMost))
	return atMost{wait, ctx}, cancel
}

// try makes one attempt.
func (l lock) try(ctx context.Context, op string) (*Lease, error) {
	lease, err := l.attempt(ctx, op)
	lease.recordStack()
	return lease, err
}

// attempt is try without a stack.
func (l lock) attempt(ctx context.Context, op string) (*Lease, error) {
	if lease, err := l.begin(ctx, op); lease != nil || err != nil {
		return lease, err
	}
	k, err := l.besideLine(ctx, op)
	if err != nil {
		return nil, err
	}
	return k.contend()
}

// besideLine makes a contender for one attempt, unless what is known in this process
// refuses it.
func (l lock) besideLine(ctx context.Context, op string) (contender, error) {
	sh := l.c.shard(l.s.name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	g := sh.gate(l.c, l.s.name)
	if err := g.busy(); err != nil {
		return contender{}, fail(op, l.s.name, err)
	}
	g.tries++
	return contender{c: l.c, g: g, s: l.s, op: op, ctx: ctx, start: l.c.now(), once: true}, nil
}

// begin checks what needs no backend; a lease means that the lock was re-entered.
func (l lock) begin(ctx context.Context, op string) (*Lease, error) {
	if err := l.check(ctx, op); err != nil || !l.s.reentrant {
		return nil, err
	}
	return l.reenter(ctx), nil
}

// check says why nobody need be asked.
func (l lock) check(ctx context.Context, op string) error {
	switch {
	case l.s.bad != nil:
		return fail(op, l.s.name, l.s.bad)
	case l.c.isClosed():
		return fail(op, l.s.name, ErrClosed)
	case ctx.Err() != nil:
		return cutShort(op, l.s.name, ctx, nil)
	}
	return nil
}

// waitsForItself refuses a wait for a lock that the caller holds by ctx, which nobody but
// the caller could end.
func (l lock) waitsForItself(ctx context.Context) error {
	for outer := FromContext(ctx); outer != nil; outer = outer.outer() {
		if outer.h.s.name != l.s.name || outer.h.c.caps.Name != l.c.caps.Name || outer.Err() != nil {
			continue
		}
		if mode := outer.Mode(); !mode.Alone() && mode == l.s.mode && l.s.limit != 1 {
			continue
		}
		if l.s.reentrant {
			return invalid("the caller holds it as %v, by its context, and so would wait for itself; a hold can't be raised to %v: unlock it first, or take it as %v at once", outer.Mode(), l.s.mode, l.s.mode)
		}
		return invalid("the caller holds it, by its context, and so would wait for itself; make the lock Reentrant, or pass a context from outside")
	}
	return nil
}

// reenter makes another lease on the hold that ctx travels with, if there is one
// that covers the mode.
func (l lock) reenter(ctx context.Context) *Lease {
	for outer := FromContext(ctx); outer != nil; outer = outer.outer() {
		h := outer.h
		if h.c == l.c && h.s.name == l.s.name && outer.Err() == nil {
			return h.enter(outer, ctx, l.s.mode)
		}
	}
	return nil
}

// enter adds a lease to a hold, or returns nil if mode asks for more than it has.
func (h *hold) enter(outer *Lease, ctx context.Context, mode Mode) *Lease {
	outer = outer.core()
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	covered := mode == h.mode && !h.turning || mode == Read && h.mode == Write
	if h.ended || !covered || h.lease != outer && !slices.Contains(h.nested, outer) {
		return nil
	}
	lease := &Lease{h: h, fence: outer.Fence(), ctx: ctx}
	h.nested = append(h.nested, lease)
	return lease.forUser()
}

// do runs f under the lock.
func (l lock) do(ctx context.Context, f func(context.Context) error) error {
	lease, err := l.wait(joined{ctx}, "do")
	if err != nil {
		return err
	}
	return lease.run(f)
}

// run runs f under the lease's context and unlocks, also if f panics.
func (l *Lease) run(f func(context.Context) error) (err error) {
	ctx := l.Context()
	defer func() {
		err = join(err, l.Unlock(ctx))
	}()
	return f(ctx)
}

// join joins the error of the work with that of the lock, unless the work's says the
// same: it returned the cause of its context.
func join(work, lock error) error {
	e := (*Error)(nil)
	switch {
	case lock == nil, errors.As(lock, &e) && e.Err != nil && errors.Is(work, e.Err):
		return work
	case work == nil:
		return lock
	}
	return errors.Join(work, lock)
}
