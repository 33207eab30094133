package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// rewired replaces the signals of a watch: f forwards from one channel to the other
// until end is closed.
func rewired(f func(ctx context.Context, from <-chan struct{}, to chan<- struct{}, end <-chan struct{})) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		watch := p.watch
		p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
			w, err := watch(ctx, r)
			if err != nil {
				return w, err
			}
			ready, end := make(chan struct{}, 1), make(chan struct{})
			go f(ctx, w.Ready, ready, end)
			return driver.Watch{Ready: ready, Close: func() { close(end); w.Close() }}, nil
		}
	}
}

// signal signals unless a signal is pending.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// muteRelease drops the signal of some releases.
func muteRelease(which func(*patched, driver.Hold) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if which(p, h) {
				p.mute(h.Name)
			}
			return release(ctx, h)
		}
	}
}

// refusals changes the answer to a refused attempt.
func refusals(change func(*patched, driver.Request, *driver.HeldError)) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if held := (*driver.HeldError)(nil); errors.As(err, &held) {
				change(p, r, held)
			}
			return g, err
		}
	}
}

// takesLater makes a watch take the lock as soon as it is free, closed or not.
func takesLater(l *lab, p *patched) {
	watch := p.watch
	p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
		w, err := watch(ctx, r)
		go func() {
			for range 1000 {
				if _, err := l.store.Connect().Acquire(context.Background(), r); err == nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		return w, err
	}
}

var watchMutants = []mutant{{
	"wake-up lost between look and wait", "watch/armed-on-return",
	func(_ *lab, p *patched) {
		watch := p.watch
		p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
			ready, end := make(chan struct{}, 1), make(chan struct{})
			go func() {
				time.Sleep(time.Millisecond)
				w, err := watch(ctx, r)
				if err != nil {
					return
				}
				defer w.Close()
				for {
					select {
					case <-w.Ready:
						ready <- struct{}{}
					case <-end:
						return
					}
				}
			}()
			return driver.Watch{Ready: ready, Close: func() { close(end) }}, nil
		}
	},
}, {
	"a release wakes all that wait", "watch/one-wake-up",
	func(l *lab, p *patched) {
		rewired(func(_ context.Context, from <-chan struct{}, to chan<- struct{}, end <-chan struct{}) {
			l.locked(func() { l.signals = append(l.signals, to) })
			for {
				select {
				case <-from:
					signal(to)
				case <-end:
					return
				}
			}
		})(l, p)
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			defer l.locked(func() {
				for _, to := range l.signals {
					signal(to)
				}
			})
			return release(ctx, h)
		}
	},
}, {
	"a watch signals nothing", "watch/release",
	rewired(func(context.Context, <-chan struct{}, chan<- struct{}, <-chan struct{}) {}),
}, {
	"a watch signals once", "watch/again",
	rewired(func(_ context.Context, from <-chan struct{}, to chan<- struct{}, end <-chan struct{}) {
		select {
		case <-from:
			to <- struct{}{}
		case <-end:
		}
	}),
}, {
	"a watch ends with the context of its arming", "watch/ctx-bounds-arming",
	rewired(func(ctx context.Context, from <-chan struct{}, to chan<- struct{}, end <-chan struct{}) {
		select {
		case <-from:
			to <- struct{}{}
		case <-ctx.Done():
		case <-end:
		}
	}),
}, {
	"a watch signals without end", "watch/quiet",
	rewired(func(_ context.Context, _ <-chan struct{}, to chan<- struct{}, end <-chan struct{}) {
		for {
			select {
			case to <- struct{}{}:
				time.Sleep(time.Millisecond)
			case <-end:
				return
			}
		}
	}),
}, {
	"Ready is closed", "watch/closed-takes-nothing",
	rewired(func(_ context.Context, _ <-chan struct{}, to chan<- struct{}, end <-chan struct{}) {
		<-end
		close(to)
	}),
}, {
	"one waiter swallows the signal for all", "watch/all-that-may-enter",
	func(l *lab, p *patched) {
		watch := p.watch
		p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
			w, err := watch(ctx, r)
			l.locked(func() {
				if l.notes[r.Name] != "" {
					w.Ready = make(chan struct{})
				}
				l.notes[r.Name] = r.Owner
			})
			return w, err
		}
	},
}, {
	"a closed watch takes the lock", "watch/closed-takes-nothing", takesLater,
}, {
	"the watch of a closed connection takes the lock", "close/watch", takesLater,
}, {
	"leaving the queue is not signalled", "watch/place-left",
	muteRelease(func(p *patched, h driver.Hold) bool { return p.waits(h.Name, h.Owner) }),
}, {
	"the last reader's release is not signalled", "watch/last-reader",
	muteRelease(func(p *patched, h driver.Hold) bool { return p.holds(h.Name, h.Owner) == driver.Read }),
}, {
	"a downgrade is not signalled", "watch/downgrade",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write {
			p.mute(r.Name)
		}
		return nil
	}),
}, {
	"who was refused misses the next signal", "watch/signaled",
	refusals(func(p *patched, r driver.Request, _ *driver.HeldError) { p.mute(r.Name) }),
}, {
	"a refusal says when the last hold ends", "watch/signaled-retry",
	refusals(func(_ *patched, _ driver.Request, held *driver.HeldError) {
		for _, h := range held.Holders {
			held.Retry = max(held.Retry, h.Left)
		}
	}),
}, {
	"all that wait are said to be signalled", "watch/signaled",
	refusals(func(_ *patched, _ driver.Request, held *driver.HeldError) { held.Signaled = true }),
}, {
	"what happened during a break is not signalled", "cut/watch",
	func(_ *lab, p *patched) { p.deaf = true },
}, {
	"a connection does not get its own releases", "watch/same-connection",
	func(l *lab, p *patched) {
		watches := false
		watch := p.watch
		p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
			watches = true
			return watch(ctx, r)
		}
		muteRelease(func(*patched, driver.Hold) bool { return watches })(l, p)
	},
}, {
	"only the first in the queue is ever signalled", "watch/queue-moves",
	func(l *lab, p *patched) {
		recorded(l, p)
		muteRelease(func(_ *patched, h driver.Hold) bool {
			r, _ := l.granted(h.Owner)
			return r.Queue
		})(l, p)
	},
}, {
	"only the last permit's release is signalled", "watch/permit",
	muteRelease(func(p *patched, h driver.Hold) bool {
		info, _ := p.mem.Inspect(context.Background(), h.Name)
		return len(info.Holders) > 1
	}),
}, {
	"only the holder's connection signals", "watch/forced-release",
	func(l *lab, p *patched) {
		mine := map[string]bool{}
		grants(func(_ *lab, r driver.Request, _ *driver.Grant) { mine[r.Owner] = true })(l, p)
		muteRelease(func(_ *patched, h driver.Hold) (theirs bool) {
			l.locked(func() { theirs = !mine[h.Owner] })
			return theirs
		})(l, p)
	},
}}

// asked replaces Revoke.
func asked(revoke func(*lab, *patched, driver.Hold) error) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		recorded(l, p)
		p.revoke = func(_ context.Context, h driver.Hold) error { return revoke(l, p, h) }
	}
}

func (p *patched) revokeOne(h driver.Hold) error { return p.mem.Revoke(context.Background(), h) }

// callOnRevoke calls the OnRevoke of an Owner's grant.
func (l *lab) callOnRevoke(owner string) {
	if r, ok := l.granted(owner); ok && r.OnRevoke != nil {
		r.OnRevoke()
	}
}

var revokeMutants = []mutant{{
	"holders are asked in modes that are not claimed", "caps/unclaimed-revoke",
	func(_ *lab, p *patched) {
		p.caps.Revocable = driver.Modes(driver.Exclusive)
		p.revoke = func(context.Context, driver.Hold) error { return nil }
	},
}, {
	"no holder learns that it was asked", "revoke/asks",
	asked(func(*lab, *patched, driver.Hold) error { return nil }),
}, {
	"asking is taking", "revoke/takes-nothing",
	asked(func(_ *lab, p *patched, h driver.Hold) error {
		return errors.Join(p.revokeOne(h), p.mem.Release(context.Background(), h))
	}),
}, {
	"a holder learns it each time", "revoke/once",
	asked(func(l *lab, _ *patched, h driver.Hold) error { l.callOnRevoke(h.Owner); return nil }),
}, {
	"all holders are asked", "revoke/only-the-named",
	asked(func(l *lab, p *patched, h driver.Hold) error {
		var all []string
		l.locked(func() {
			for owner := range l.owners {
				all = append(all, owner)
			}
		})
		for _, owner := range all {
			l.callOnRevoke(owner)
		}
		return nil
	}),
}, {
	"asking is never lost", "revoke/lost",
	asked(func(_ *lab, p *patched, h driver.Hold) error { p.revokeOne(h); return nil }),
}, {
	"who was granted once can be asked for ever", "revoke/expired",
	asked(func(l *lab, p *patched, h driver.Hold) error {
		if _, ok := l.granted(h.Owner); ok {
			return nil
		}
		return p.revokeOne(h)
	}),
}, {
	"any holder is asked", "revoke/leaves-successor",
	asked(func(_ *lab, p *patched, h driver.Hold) error { return p.revokeOne(p.holder(h.Name)) }),
}, {
	"a waiter in the queue gets the request to release", "revoke/not-in-queue",
	asked(func(_ *lab, p *patched, h driver.Hold) error {
		if p.waits(h.Name, h.Owner) {
			return nil
		}
		return p.revokeOne(h)
	}),
}, {
	"the first OnRevoke stays", "revoke/latest",
	func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if first, ok := l.granted(r.Owner); ok {
				r.OnRevoke = first.OnRevoke
			}
			return acquire(ctx, r)
		}
		recorded(l, p)
	},
}, {
	"a refused attempt asks the holder", "revoke/unasked",
	func(l *lab, p *patched) {
		recorded(l, p)
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) {
				l.callOnRevoke(p.holder(r.Name).Owner)
			}
			return g, err
		}
	},
}, {
	"who has not agreed to be asked loses the lock", "revoke/without-consent",
	asked(func(_ *lab, p *patched, h driver.Hold) error {
		err := p.revokeOne(h)
		if errors.Is(err, driver.ErrUnsupported) {
			return p.mem.Release(context.Background(), h)
		}
		return err
	}),
}, {
	"Revoke ignores its context", "ctx/revoke",
	func(_ *lab, p *patched) {
		p.revoke = func(ctx context.Context, h driver.Hold) error {
			return p.mem.Revoke(context.WithoutCancel(ctx), h)
		}
	},
}, {
	"Revoke after Close goes on", "close/calls-after",
	func(l *lab, p *patched) {
		other := l.store.Connect()
		p.revoke = other.Revoke
	},
}}
