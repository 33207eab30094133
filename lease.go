package distlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/renew"
)

// What ends which context:
//
//	context of          ends with
//	Lock                the caller's; with WaitAtMost, also after that (lockContext). It bounds the wait only
//	a lease             Unlock, Detach, a loss, Close. Within Do, TryDo and Lead also with the caller's; within Multi
//	                    also with the lease before it (lockContext.ends)
//	a term              its lease's, and a request to step down (Election.Lead)
//	a call              the wait's, and CallTimeout (calls.context). A release has the values of the caller's context, and
//	                    does not end with it
//	renewals            Close (env.life), and a part of the TTL (renew.Hold.patience)

// Lease is one hold of a lock, from Lock to Unlock or loss. It is safe for
// concurrent use.
type Lease struct {
	mu    sync.Mutex
	err   error // why it ended; nil while it is live
	h     *hold
	fence uint64
	ctx   context.Context // the context of Lock; later the lease's own
	leak  *leakWatch      // nil if leaks are not reported
}

// leaseContext is a lease's context, with the function that ends it.
type leaseContext struct {
	context.Context // its end; it does not lead to the lease
	cancel          context.CancelCauseFunc
	lease           *Lease
	values          context.Context // nil if the first has them
}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	return c.inherited(key)
}

// inherited returns a value from above the lease. Package context looks for the cancellable
// context, so that comes first.
func (c *leaseContext) inherited(key any) any {
	if v := c.Context.Value(key); v != nil || c.values == nil {
		return v
	}
	return c.values.Value(key)
}

// lockContext is the context of a Lock whose lease gets its own context from another one.
type lockContext struct {
	context.Context                 // ends the wait
	parent          context.Context // of the lease's context: that has its values
	ends            bool            // and ends with it
}

// endingWith returns the context of a Lock whose lease also ends its context with ctx.
func endingWith(ctx context.Context) context.Context { return lockContext{ctx, ctx, true} }

// sooner returns the context of a Lock with ctx whose wait ends with bounded.
func sooner(ctx, bounded context.Context) context.Context {
	if c, ok := ctx.(lockContext); ok {
		return lockContext{bounded, c.parent, c.ends}
	}
	return lockContext{bounded, ctx, false}
}

type leaseKey struct{}

// Context returns a context that ends with the lease: with cause ErrReleased by Unlock, with cause
// ErrLost no later than the lease's deadline, with cause ErrClosed by Client.Close. It has the values
// of the context that Lock was called with, but does not end with it. A Reentrant lock finds its hold
// by it.
func (l *Lease) Context() context.Context {
	core := l.core()
	core.mu.Lock()
	defer core.mu.Unlock()
	if c := l.made(); c != nil {
		return c
	}
	end, values := l.ancestors()
	c := &leaseContext{lease: l, values: values}
	if made := core.made(); made != nil { // before, by the core
		c.Context, c.cancel = made.Context, made.cancel
	} else {
		c.Context, c.cancel = context.WithCancelCause(end)
	}
	l.ctx = c
	if core != l {
		core.ctx = &leaseContext{Context: c.Context, cancel: c.cancel, lease: core}
	}
	if core.err != nil {
		c.cancel(core.err)
	}
	return c
}

// made returns the lease's context; nil if it was not made yet. The core's mu is held.
func (l *Lease) made() *leaseContext {
	if c, ok := l.ctx.(*leaseContext); ok && c.lease == l {
		return c
	}
	return nil
}

// ancestors returns the context that ends the lease's context, and the one that has its values; nil
// if the first has them.
func (l *Lease) ancestors() (end, values context.Context) {
	c, ok := l.ctx.(lockContext)
	switch {
	case !ok:
		return context.Background(), l.ctx
	case c.ends:
		return c.parent, nil
	}
	return context.Background(), c.parent
}

// values returns a context with the values of the context of Lock; without them if leaks are reported, since
// values may keep a lease reachable.
func (l *Lease) values() context.Context {
	core := l.core()
	core.mu.Lock()
	defer core.mu.Unlock()
	if core.ctx == nil {
		return context.Background()
	}
	return core.ctx
}

// outer returns the lease that the context of Lock descends from, or nil.
func (l *Lease) outer() *Lease {
	core := l.core()
	core.mu.Lock()
	ctx, c := l.ctx, l.made()
	core.mu.Unlock()
	if c == nil {
		return FromContext(ctx)
	}
	lease, _ := c.inherited(leaseKey{}).(*Lease)
	return lease
}

// end ends the lease if it was live, and reports whether it was.
func (l *Lease) end(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	l.err = err
	if ctx := l.made(); ctx != nil {
		ctx.cancel(err) // under mu, so that no other Unlock returns before
	}
	return true
}

// Err returns nil while the lease is held. The error matches ErrLost once the lease was lost,
// ErrReleased after Unlock, and ErrClosed after Client.Close. Err compares the clock itself: it
// never returns nil after the deadline.
func (l *Lease) Err() error {
	l = l.core()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.h.gone.Load():
		return l.h.lostError(renew.ErrGone)
	case !l.h.trusted():
		return l.h.lostError(renew.ErrDeadline)
	}
	return nil
}

// Fence returns the lease's fencing token, which is greater than the fence of every lease that held
// the lock before. Pass it to the storage that the lock protects, with or before the first read,
// and let the storage reject smaller ones. Fence returns 0 if the backend has no fences.
func (l *Lease) Fence() uint64 {
	l = l.core()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence
}

// Name returns the lock's name.
func (l *Lease) Name() string { return l.h.s.name }

// Mode returns how the lock is held. Downgrade changes it from Write to Read.
func (l *Lease) Mode() Mode {
	l.h.sh.mu.Lock()
	defer l.h.sh.mu.Unlock()
	return l.h.mode
}

// Owner returns the name of the hold at the backend, which Inspect shows.
func (l *Lease) Owner() string { return l.h.owner }

// Deadline returns when the lease is lost unless it is renewed before. It is counted from before
// the last successful request, less the margin. Renewals move it.
func (l *Lease) Deadline() time.Time { return l.h.env.base.Add(l.h.life.Trust()) }

// Unlock releases the lock, after it has ended the lease's context. It releases even if ctx has
// ended, and takes about CallTimeout at most.
//
// It returns nil once the backend has confirmed, also if the backend knows the hold no more after a try that was sent and had
// no answer: as far as anyone can know, that try has released it. ErrLost says that the lease was lost before; a
// successor is not touched. ErrUnavailable says that there was no answer, or a refusal for a reason that may
// pass, such as a withdrawn right: the release is retried in the background, and the lock ends with its TTL
// at the latest. Another call returns at once: ErrLost if the lease had been lost before the first, else nil.
//
// With MinHold, Unlock within that time ends the lease and keeps the lock; see there.
func (l *Lease) Unlock(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background() // a panic now would keep the lock
	}
	core := l.core()
	ended := core.end(ErrReleased)
	runtime.KeepAlive(l) // it was in use until then
	if ended {
		return l.h.unlock(ctx, core, l.h.env.observer.Released)
	}
	core.mu.Lock()
	err := core.err
	core.mu.Unlock()
	if errors.Is(err, ErrReleased) {
		return nil
	}
	l.h.settle()
	return &Error{Op: "unlock", Name: l.h.s.name, Kind: kindOf(err), Err: err}
}

// Extend makes the lease last for at least d from now. It never shortens it. A lease that is
// renewed is renewed by at least d from then on. Extend returns ErrInvalid if d goes beyond
// MaxHold, or beyond the backend's maximum less the margin; ErrUnsupported if the backend can't keep
// a hold for so long after its grant, as ZooKeeper beyond its session; ErrLost if the lease is lost;
// ErrUnavailable if there was no answer. After any error the old deadline holds.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	const op = "extend"
	if err := l.Err(); err != nil {
		return &Error{Op: op, Name: l.Name(), Kind: kindOf(err), Err: err}
	}
	caps := l.h.env.caps
	if most := caps.Longest() - l.h.s.terms.Margin; d <= 0 || d > most {
		return fail(op, l.Name(), invalid("extension by %v; want more than 0 and at most the maximum of %s less the margin, %v", d, caps.Name, most))
	}
	if err := l.h.extend(ctx, l.core(), max(d, caps.MinTTL)); err != nil {
		return fail(op, l.Name(), err)
	}
	return nil
}

// Fence returns the fencing token of the innermost lease that ctx descends from, 0 if there is
// none; see Lease.Fence.
func Fence(ctx context.Context) uint64 {
	if l := FromContext(ctx); l != nil {
		return l.Fence()
	}
	return 0
}

// FenceOf returns the fencing token of the innermost lease of the lock called name that ctx descends from, 0
// if there is none. It is for work under several locks. Where locks of two backends have the name, it
// is 0, which no fence is: there, use the Fence of each Lease.
func FenceOf(ctx context.Context, name string) uint64 {
	var found *Lease
	for l := FromContext(ctx); l != nil; l = l.outer() {
		switch {
		case l.Name() != name:
		case found == nil:
			found = l
		case found.h.env.caps.Name != l.h.env.caps.Name:
			return 0
		}
	}
	if found == nil {
		return 0
	}
	return found.Fence()
}

// FromContext returns the innermost lease that ctx descends from, or nil.
func FromContext(ctx context.Context) *Lease {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	return l
}

// leakWatch connects a lease's core, which the hold refers to, with the handle that the user has.
// Nothing in the client leads to the handle, so that no Unlock can follow once the handle is
// unreachable. If leaks are not reported, both are one Lease.
type leakWatch struct {
	core   *Lease
	handle weakPointer[Lease] // only the core has it
	stack  []uintptr          // of the call of Lock; set before the user has the handle, which has it
}

// core returns the lease that the hold refers to, which has the state.
func (l *Lease) core() *Lease {
	if l.leak == nil {
		return l
	}
	return l.leak.core
}

// forUser returns the handle of a new lease.
func (l *Lease) forUser() *Lease {
	if l.h.env.observer.Leaked == nil || l.h.s.terms.Fixed {
		return l
	}
	handle := &Lease{h: l.h, ctx: l.ctx, leak: &leakWatch{core: l}}
	// The handle and its context refer to each other: a finalizer of the handle would never run.
	runtime.SetFinalizer(handle.leak, (*leakWatch).report)
	l.ctx, l.leak = nil, &leakWatch{core: l, handle: makeWeak(handle)}
	return handle
}

// handle returns the user's handle of the core l. If the user has dropped it, it returns the core,
// by which the lease can be unlocked.
func (l *Lease) handle() *Lease {
	if l.leak != nil {
		if handle := l.leak.handle.Value(); handle != nil {
			return handle
		}
	}
	return l
}

// recordStack records where l was taken, if its leak would be reported. l may be nil.
func (l *Lease) recordStack() {
	if l == nil || l.leak == nil {
		return
	}
	var pcs [32]uintptr
	l.leak.stack = append([]uintptr(nil), pcs[:runtime.Callers(2, pcs[:])]...)
}

// report reports a leak if the lease is held. The runtime calls it once the handle is unreachable.
func (w *leakWatch) report() {
	l := w.core
	if l.Err() != nil {
		return
	}
	l.h.sh.mu.Lock()
	event := l.h.event(l, l.h.env.now())
	l.h.sh.mu.Unlock()
	event.Stack = trace(w.stack)
	emit(l.h.env.observer.Leaked, event, nil)
}

// trace formats a stack, without the calls of this package on top.
func trace(stack []uintptr) string {
	var b strings.Builder
	for frames := runtime.CallersFrames(stack); ; {
		f, more := frames.Next()
		if b.Len() > 0 || !strings.HasPrefix(f.Function, "github.com/distlock/distlock.") {
			fmt.Fprintf(&b, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}
