package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

var queueMutants = []mutant{{
	"a place is passed by a try", "line/no-passing", passing(func(r driver.Request) bool { return !r.Queue }),
}, {
	"the last to come is the first to get in", "line/fifo", passing(func(r driver.Request) bool { return r.Queue }),
}, {
	"a place is passed by a reader", "line/reader-behind-writer",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) && r.Mode == driver.Read && p.holder(r.Name).Mode == driver.Read {
				r.Name += " beside"
				return acquire(ctx, r)
			}
			return g, err
		}
	},
}, {
	"asking again sends one to the end", "line/repeat-keeps-place",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Queue && p.holds(r.Name, r.Owner) == 0 {
				p.mem.Release(ctx, r.Hold)
			}
			return acquire(ctx, r)
		}
	},
}, {
	"places end at once", "line/place-lives",
	placesLast(func(time.Duration) time.Duration { return time.Millisecond }),
}, {
	"places never end", "line/place-ends",
	placesLast(func(time.Duration) time.Duration { return 24 * time.Hour }),
}, {
	"the place of a dead owner blocks those behind it", "line/dead-place-lets-next-in",
	placesLast(func(time.Duration) time.Duration { return 24 * time.Hour }),
}, {
	"asking again does not prolong a place", "line/repeat-restarts-place",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Queue = r.Queue && !p.waits(r.Name, r.Owner)
			return acquire(ctx, r)
		}
	},
}, {
	"Release does not leave the line", "line/release-leaves",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if p.waits(h.Name, h.Owner) {
				return nil
			}
			return release(ctx, h)
		}
	},
}, {
	"a place is renewed as if it were a hold", "line/place-is-no-hold",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		if p.waits(h.Name, h.Owner) {
			return nil
		}
		return p.renewOne(h)
	}),
}, {
	"a grant does not tell of the line", "line/queued",
	grants(func(_ *lab, _ driver.Request, g *driver.Grant) { g.Queued = false }),
}, {
	"a line sends the holder away", "line/holder-keeps-holding",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			info, _ := p.mem.Inspect(ctx, r.Name)
			if p.holds(r.Name, r.Owner) != 0 && len(info.Waiters) > 0 {
				return driver.Grant{}, &driver.HeldError{}
			}
			return acquire(ctx, r)
		}
	},
}, {
	"a refusal tells a minute more than a place lives", "line/retry",
	retries(func(d time.Duration) time.Duration { return d + time.Minute }),
}, {
	"readers in line get in one by one", "line/readers-behind-writer-share",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Queue && p.holder(r.Name).Mode == driver.Read {
				return driver.Grant{}, &driver.HeldError{}
			}
			return acquire(ctx, r)
		}
	},
}, {
	"a place is passed by a try for a permit", "line/permits",
	passing(func(r driver.Request) bool { return r.Mode == driver.Counted && !r.Queue }),
}}

// passing lets some requests ignore the line.
func passing(which func(driver.Request) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if which(r) && (r.Mode == driver.Counted || p.holder(r.Name).Owner == "") {
				info, _ := p.mem.Inspect(ctx, r.Name)
				for _, w := range info.Waiters {
					p.mem.Release(ctx, driver.Hold{Name: r.Name, Owner: w.Owner, Mode: w.Mode})
				}
			}
			return acquire(ctx, r)
		}
	}
}

// placesLast gives places another life than holds.
func placesLast(life func(time.Duration) time.Duration) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) && r.Queue {
				r.TTL = life(r.TTL)
				return acquire(ctx, r)
			}
			return g, err
		}
	}
}

// waits reports whether owner stands in line for name.
func (p *patched) waits(name, owner string) bool {
	info, _ := p.mem.Inspect(context.Background(), name)
	for _, w := range info.Waiters {
		if w.Owner == owner {
			return true
		}
	}
	return false
}

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
	"leaving the line is not signalled", "watch/place-left",
	muteRelease(func(p *patched, h driver.Hold) bool { return p.waits(h.Name, h.Owner) }),
}, {
	"the last reader's release is not signalled", "watch/last-reader",
	muteRelease(func(p *patched, h driver.Hold) bool { return p.holds(h.Name, h.Owner) == driver.Read }),
}, {
	"a downgrade is not signalled", "watch/downgrade",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write {
				p.mute(r.Name)
			}
			return acquire(ctx, r)
		}
	},
}, {
	"what happened during a break is not signalled", "cut/watch",
	func(_ *lab, p *patched) { p.deaf = true },
}, {
	"a connection does not hear its own releases", "watch/same-connection",
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
	"only the first in line is ever signalled", "watch/line-moves",
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
