package distlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Observer is notified of what happens to a client's locks, for metrics, traces and logs. Every field may
// be nil. The functions are called inline, by many goroutines at once and with no mutex held, after what they report: they
// must be quick and must not call the client. The events of one lease come in their order, but renewals may come at any
// place among them, and a lease that ends while it is being handed off may report its end first or alone.
//
// A panic is not caught. In a call of the user's it continues in that call, which has happened or not as a whole: a Lock that
// panics holds nothing and waits for nothing, an Unlock has released. In a goroutine of the client's it ends the program,
// as any panic does.
type Observer struct {
	Waiting   func(Event) // a caller starts to wait, inside the process or at the backend: Blocker
	GaveUp    func(Event) // a caller stopped waiting: Err says why, Waited how long, Blocker
	Refused   func(Event) // a try was refused: Err, Blocker
	Granted   func(Event) // the backend granted a lock: Waited, Fence
	HandedOff func(Event) // a waiter of this process got the lock without the backend: Waited, Fence
	Renewed   func(Event) // a hold was renewed: Left

	// Unanswered is called when the backend could not be reached, refused the login or a right, or gave no answer otherwise
	// (Err), and the client tries again: with Op "renew" for each such renewal, which is retried until the lease's deadline
	// (Left); with Op "release" for a release in the background; with the call's own Op, such as "lock", for a wait (Waited).
	// The latter two are reported when the error has another text than the last one, and for a wait also every 30 s.
	Unanswered func(Event)

	Asked      func(Event) // another program asked for the release of a lease that is Revocable: Held
	Lost       func(Event) // a lease was lost: Err says why, Held how long it was held
	Released   func(Event) // a lease was unlocked, or its client was closed: Held; Err if the backend did not confirm
	Downgraded func(Event) // a lease that held for writing holds for reading now: Mode and Fence from before, Held

	// Leaked is called when the garbage collector finds that a lease is held and that nothing
	// refers to it, or to a context that descends from its own: no Unlock can follow. Stack is
	// where it was taken. The lock stays held and is renewed, since the work under it may still be
	// in progress; Options.MaxHold ends it. Leases with WithoutRenewal are not reported, as they
	// end by themselves. Of the locks of a MultiLease at least the last is reported. While Leaked
	// is not nil, each Lock also records its stack.
	Leaked func(Event)
}

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	// Context has the values of the caller's context, such as its span: of Unlock or Detach for a release, of Lock
	// otherwise. It is never nil, and may have ended. It has no values for a renewal, since leases share those calls. If
	// Leaked is set it has none of Lock's, which could keep a leaked lease reachable.
	// It is a field, since slog and OpenTelemetry take it beside what the event has, and most observers ignore it.
	Context context.Context

	Op     string // what had no answer; for Unanswered
	Name   string
	Mode   Mode
	Owner  string // identifies the hold. It is the right to release it, so no log or metric shows it
	Fence  uint64
	Waited time.Duration // from the call of Lock on
	Held   time.Duration // from the grant on

	// Left is the time to the lease's deadline when a renewal was answered, or was given up. It falls before
	// anything is lost.
	Left time.Duration

	// Contended says that the caller had to wait: Waiting was called before. For Granted; it is true of all HandedOff
	// and GaveUp.
	Contended bool

	// Blocker is one that is in the way, without its Owner; nil if the backend has not said who. It may
	// be of this process. No call is made to find it out.
	Blocker *Holder

	Err   error
	Stack string // where the lease was taken, the caller of Lock first; for Leaked
}

// emit calls f, which is the user's, and may panic or end the goroutine. Then the panic continues, after undo, if that is
// not nil: it ends what the caller was about to do next, or to return. What happened is complete before: no mutex is
// held, no reservation, and no role in a queue that undo does not pass on.
func emit(f func(Event), e Event, undo func()) {
	if f == nil {
		return
	}
	returned := false
	defer func() {
		if !returned && undo != nil {
			undo()
		}
	}()
	f(e)
	returned = true
}

// blockerOf returns the first holder that an error names, without its Owner; nil if it names none.
func blockerOf(err error) *Holder {
	var held *HeldError
	if !errors.As(err, &held) || len(held.Holders) == 0 {
		return nil
	}
	h := held.Holders[0]
	h.Owner = ""
	return &h
}

// Observers returns an observer that notifies all of them, in their order. Nil ones are left out.
func Observers(all ...*Observer) *Observer {
	joined := &Observer{}
	for _, o := range all {
		if o == nil {
			continue
		}
		for i, f := range o.fields() {
			at := joined.fields()[i]
			*at = both(*at, *f)
		}
	}
	return joined
}

func (o *Observer) fields() []*func(Event) {
	return []*func(Event){
		&o.Waiting, &o.GaveUp, &o.Refused, &o.Granted, &o.HandedOff, &o.Renewed, &o.Unanswered, &o.Asked, &o.Lost, &o.Released,
		&o.Downgraded, &o.Leaked,
	}
}

func both(a, b func(Event)) func(Event) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(e Event) { a(e); b(e) }
}

// longWait is from when on LogTo warns of a wait.
const longWait = time.Second

// LogTo returns an observer that logs each event: a loss as an error; what had no answer, a leak, a release that
// was not confirmed and a wait of more than a second as a warning; all else for debugging. The handler is
// called inline: one that blocks delays Lock, Unlock and renewals.
func LogTo(l *slog.Logger) *Observer {
	log := func(level slog.Level, message string) func(Event) {
		return func(e Event) { l.LogAttrs(e.Context, level, message, e.attrs()...) }
	}
	wait := func(message string) func(Event) {
		quick, long := log(slog.LevelDebug, message), log(slog.LevelWarn, message)
		return func(e Event) {
			if e.Waited > longWait {
				long(e)
				return
			}
			quick(e)
		}
	}
	released, unconfirmed := log(slog.LevelDebug, "lock released"), log(slog.LevelWarn, "lock released, without an answer")
	return &Observer{
		Waiting: log(slog.LevelDebug, "waiting for a lock"), Refused: log(slog.LevelDebug, "lock refused"),
		GaveUp: wait("gave up waiting for a lock"), Granted: wait("lock granted"), HandedOff: wait("lock handed off"),
		Renewed: log(slog.LevelDebug, "lock renewed"), Unanswered: log(slog.LevelWarn, "no answer about a lock; trying again"),
		Asked: log(slog.LevelDebug, "release of a lock requested"), Lost: log(slog.LevelError, "lock lost"),
		Released: func(e Event) {
			if e.Err != nil {
				unconfirmed(e)
				return
			}
			released(e)
		},
		Downgraded: log(slog.LevelDebug, "lock downgraded"), Leaked: log(slog.LevelWarn, "lock leaked"),
	}
}

// attrs describes an event for a log.
func (e Event) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("lock", e.Name), slog.String("mode", e.Mode.String())}
	if e.Op != "" {
		attrs = append(attrs, slog.String("op", e.Op))
	}
	if e.Fence != 0 {
		attrs = append(attrs, slog.Uint64("fence", e.Fence))
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"waited", e.Waited}, {"held", e.Held}, {"left", e.Left}} {
		if d.value != 0 {
			attrs = append(attrs, slog.Duration(d.key, d.value))
		}
	}
	if e.Blocker != nil {
		attrs = append(attrs, slog.String("blocker", e.Blocker.String()))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if e.Stack != "" {
		attrs = append(attrs, slog.String("stack", e.Stack))
	}
	return attrs
}
