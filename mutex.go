package distlock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distlock/distlock/internal/wait"
)

// lock is the common part of all kinds of locks: a client and a spec.
type lock struct {
	c *Client
	s *spec
}

// Locker is a lock that Multi can take: a *Mutex, an *RWMutex (its write side), the
// value of RWMutex.Reader, or a *Semaphore (one permit).
type Locker interface{ one() lock }

// Mutex is an exclusive lock. It is a name and options, not a state: it may be copied, made anew,
// and used by many goroutines at once. All state is in a Lease.
type Mutex struct{ l lock }

// Mutex returns an exclusive lock. Bad names and options are reported by the first call that uses
// them, as ErrInvalid or ErrUnsupported.
func (c *Client) Mutex(name string, opts ...LockOption) *Mutex {
	return &Mutex{lock{c, c.newSpec(name, Exclusive, 0, opts)}}
}

func (m *Mutex) one() lock { return m.l }

// Lock waits until the lock is held or ctx is done. ctx bounds the wait only: the
// lease outlives it, and ends by Unlock or loss.
//
// A wait that ctx ends returns an *Error that matches ctx.Err() and the last answer
// of the backend (ErrHeld, ErrUnavailable). An unreachable backend does not end the
// wait, nor does one that refuses the login or a right for the moment: Observer.Unanswered tells why. ErrInvalid,
// ErrUnsupported and ErrClosed end it at once. It is also ErrInvalid if ctx belongs to leases that keep this
// lock from being granted: the caller would wait for itself.
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) { return m.l.lock(ctx, "lock") }

// TryLock makes one attempt. It returns ErrHeld if another Owner holds the lock or is ahead in the
// queue, and ErrUnavailable if the backend did not answer in time.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) { return m.l.try(ctx, "trylock") }

// Do runs f while it holds the lock. The context of f is the lease's, and ends with
// ctx too. If f panics, the lock is released and the panic continues.
//
// The error joins the error of f and the error of the lock, which is ErrLost if the lease was lost
// before f returned, even if f saw no error.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return m.l.do(ctx, f)
}

// TryDo runs f as Do does if the lock is free now, and reports whether it ran f. If another Owner
// holds the lock, TryDo returns false and no error. Other errors with false come from TryLock.
//
// For a scheduled job that all hosts start at the same time there is Client.Cron.
func (m *Mutex) TryDo(ctx context.Context, f func(ctx context.Context) error) (ran bool, err error) {
	if f == nil {
		return false, noWork("trydo", m.l.s.name)
	}
	lease, err := m.l.try(endingWith(ctx), "trydo")
	switch {
	case errors.Is(err, ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, runUnder(lease, f)
}

// lock waits until the lock is held or ctx is done, which WaitAtMost may end sooner.
func (l lock) lock(ctx context.Context, op string) (*Lease, error) {
	if l.s.waitAtMost == 0 {
		return l.wait(ctx, op)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, l.s.waitAtMost, fmt.Errorf("it waited for %v", l.s.waitAtMost))
	defer cancel()
	return l.wait(sooner(ctx, bounded), op)
}

// wait is lock without WaitAtMost. A lease that is lost before it can be returned is none: another Owner may have been
// granted since.
func (l lock) wait(ctx context.Context, op string) (*Lease, error) {
	for round := 0; ; round++ {
		lease, err := l.waitOnce(ctx, op)
		if l.c.observer.Leaked != nil {
			lease.recordStack()
		}
		if lease == nil || lease.h.trusted() || !errors.Is(lease.Err(), ErrLost) {
			return lease, err
		}
		_ = lease.Unlock(ctx)
		_ = wait.Sleep(ctx, wait.Jitter(wait.Backoff(round, firstPause, maxWait))) // waitOnce finds the end of ctx
	}
}

func (l lock) waitOnce(ctx context.Context, op string) (*Lease, error) {
	if err := l.check(ctx, op); err != nil {
		return nil, err
	}
	c := &contender{env: &l.c.env, queues: &l.c.queues, sh: l.c.queues.shard(l.s.name), s: l.s, op: op, ctx: ctx, start: l.c.now()}
	if outer := FromContext(ctx); outer != nil {
		if lease := l.reenter(ctx, outer); lease != nil {
			return lease, nil
		}
		nested, err := l.waitsForItself(outer)
		if err != nil {
			return nil, fail(op, l.s.name, err)
		}
		c.nested = nested
	}
	if l.s.fair || c.nested != nil {
		return c.contend()
	}
	return c.enqueue()
}

// try makes one attempt.
func (l lock) try(ctx context.Context, op string) (*Lease, error) {
	if err := l.check(ctx, op); err != nil {
		return nil, err
	}
	if lease := l.reenter(ctx, FromContext(ctx)); lease != nil {
		lease.recordStack()
		return lease, nil
	}
	start := l.c.now()
	c, err := l.besideQueue(ctx, op)
	var lease *Lease
	if err == nil {
		lease, err = c.contend()
	}
	if lease != nil {
		if lost := lease.Err(); errors.Is(lost, ErrLost) { // another Owner may have been granted since
			_ = lease.Unlock(ctx)
			return nil, &Error{Op: op, Name: l.s.name, Kind: ErrUnavailable, Err: errors.New(plainText(lost))}
		}
	}
	lease.recordStack()
	if report := l.c.observer.Refused; report != nil && errors.Is(err, ErrHeld) {
		emit(report, Event{Context: ctx, Name: l.s.name, Mode: l.s.mode, Waited: l.c.now() - start, Blocker: blockerOf(err), Err: err}, nil)
	}
	return lease, err
}

// besideQueue makes a contender for one attempt, unless this process knows already that it would be
// refused.
func (l lock) besideQueue(ctx context.Context, op string) (contender, error) {
	sh := l.c.queues.shard(l.s.name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := l.c.queues.queueOf(sh, l.s.name)
	if err := q.busy(l.s.mode); err != nil {
		return contender{}, fail(op, l.s.name, err)
	}
	q.tries++
	return contender{env: &l.c.env, queues: &l.c.queues, sh: sh, queue: q, s: l.s, op: op, ctx: ctx, start: l.c.now(), once: true}, nil
}

// check returns why the backend need not be called.
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

// waitsForItself refuses to wait for a lock that the caller holds by outer and those around it: only the caller could end
// such a wait. nested is the lease of a caller that holds it for reading, or has a permit, and wants that again: then it waits for
// itself if a writer is ahead.
func (l lock) waitsForItself(outer *Lease) (nested *Lease, err error) {
	permits := 0
	var counted *hold
	for ; outer != nil; outer = outer.outer() {
		if outer.h.s.name != l.s.name || outer.h.env.caps.Name != l.c.caps.Name || outer.Err() != nil {
			continue
		}
		mode := outer.Mode()
		switch {
		case mode == Read && l.s.mode == Read:
			nested = outer
			continue
		case mode == Counted && l.s.mode == Counted:
			if outer.h != counted { // not re-entered
				counted, permits = outer.h, permits+1
			}
			if nested = outer; permits < l.s.limit {
				continue
			}
		}
		if l.s.reentrant && outer.h.env != &l.c.env {
			return nil, invalid("the caller holds it, by its context, through another Client, and so would wait for itself; a lock is re-entered through the Client that took it")
		}
		if l.s.reentrant {
			return nil, invalid("the caller holds it as %v, by its context, and so would wait for itself; a hold can't be raised to %v: unlock it first, or take it as %v at once", mode, l.s.mode, l.s.mode)
		}
		return nil, invalid("the caller holds it, by its context, and so would wait for itself; make the lock Reentrant, or pass a context from outside")
	}
	return nested, nil
}

// reenter makes another lease on a hold that the caller has by outer or one around it, if the lock is Reentrant and the hold
// covers the mode.
func (l lock) reenter(ctx context.Context, outer *Lease) *Lease {
	for ; outer != nil && l.s.reentrant; outer = outer.outer() {
		h := outer.h
		if h.env == &l.c.env && h.s.name == l.s.name && outer.Err() == nil {
			return h.enter(outer, ctx, l.s.mode)
		}
	}
	return nil
}

// enter adds a lease to the hold. It returns nil if mode needs more than the hold has.
func (h *hold) enter(outer *Lease, ctx context.Context, mode Mode) *Lease {
	outer = outer.core()
	h.sh.mu.Lock()
	defer h.sh.mu.Unlock()
	covered := mode == h.mode && h.state == held || mode == Read && h.mode == Write
	if !h.state.live() || !covered || h.lease != outer && !slices.Contains(h.nested, outer) {
		return nil
	}
	lease := &Lease{h: h, fence: outer.Fence(), ctx: ctx}
	h.nested = append(h.nested, lease)
	return lease.forUser()
}

// do runs f under the lock.
func (l lock) do(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return noWork("do", l.s.name)
	}
	lease, err := l.lock(endingWith(ctx), "do")
	if err != nil {
		return err
	}
	return runUnder(lease, f)
}

// noWork is the error of a call that would hold a lock for a function that is nil.
func noWork(op, name string) error { return fail(op, name, invalid("no function to run")) }

// runUnder runs f under the context of one or more leases, and unlocks them even if f panics.
func runUnder(held interface {
	Context() context.Context
	Unlock(context.Context) error
}, f func(context.Context) error) (err error) {
	ctx := held.Context()
	defer func() {
		err = join(err, held.Unlock(ctx))
	}()
	return f(ctx)
}

// join joins the error of the work with the error of the lock, on one line and the cause first, unless both say the same: the
// work returned the cause of its context, the loss.
func join(work, lock error) error {
	switch {
	case lock == nil, repeatsLoss(work, lock):
		return work
	case work == nil:
		return lock
	}
	if errors.Is(lock, ErrLost) {
		return &pair{lock, work, "%s; %s"}
	}
	return &pair{work, lock, "%s; %s"}
}

// repeatsLoss reports whether the error of a lock, or of each of several, is a loss that the work has returned.
func repeatsLoss(work, lock error) bool {
	if e, ok := lock.(*Error); ok {
		return errors.Is(e, ErrLost) && e.Err != nil && errors.Is(work, e.Err)
	}
	all, ok := lock.(interface{ Unwrap() []error })
	return ok && !slices.ContainsFunc(all.Unwrap(), func(one error) bool { return !repeatsLoss(work, one) })
}
