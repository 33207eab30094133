package distlock

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"weak"
)

// leakWatch connects the lease that a hold refers to, its core, with the handle that the user has.
// Nothing of the client leads to the handle, so that its end shows that no Unlock can follow. Both
// are one Lease if leaks are not reported.
type leakWatch struct {
	core   *Lease
	handle weak.Pointer[Lease]
	stack  []uintptr // of the call that took it; set before the user has the handle
}

// core is the lease that the hold refers to, which has the state.
func (l *Lease) core() *Lease {
	if l.leak == nil {
		return l
	}
	return l.leak.core
}

// forUser returns the handle of a new lease.
func (l *Lease) forUser() *Lease {
	if l.h.c.watch.Leaked == nil || l.h.s.terms.Fixed {
		return l
	}
	w := &leakWatch{core: l}
	handle := &Lease{h: l.h, ctx: l.ctx, leak: w}
	w.handle = weak.Make(handle)
	l.ctx, l.leak = nil, w
	runtime.AddCleanup(handle, (*leakWatch).report, w)
	return handle
}

// handle is what the user has of the core l. If the user has dropped it, it is another, by
// which the lease can be unlocked.
func (l *Lease) handle() *Lease {
	if l.leak == nil {
		return l
	}
	if handle := l.leak.handle.Value(); handle != nil {
		return handle
	}
	return &Lease{h: l.h, ctx: context.Background(), leak: l.leak}
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
	event := l.h.event(l, l.h.c.now())
	l.h.sh.mu.Unlock()
	event.Stack = trace(w.stack)
	emit(l.h.c.watch.Leaked, event)
}

// trace describes a stack, without the calls of this package on top.
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
