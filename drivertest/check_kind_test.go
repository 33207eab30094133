package drivertest

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock/driver"
)

var kindMutants = []mutant{{
	"kinds of lock are independent", "kinds/never-independent",
	requests(func(r *driver.Request) {
		if r.Mode == driver.Counted {
			r.Name += " as semaphore"
		}
	}),
}, {
	"another kind of lock is refused for good", "kinds/never-independent", keepApart,
}, {
	"an attempt as another kind changes the kind", "kinds/free-again",
	func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			var kind string
			l.locked(func() { kind = l.notes[r.Name] })
			if kind != "" && kind != r.Mode.String() {
				return driver.Grant{}, &driver.HeldError{}
			}
			holder := p.holder(r.Name)
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) && !holder.Mode.SameKind(r.Mode) {
				l.locked(func() { l.notes[r.Name] = r.Mode.String() })
			}
			return g, err
		}
	},
}, {
	"each kind of lock has a queue of its own", "kinds/one-queue",
	passingPlaces(func(_ *patched, r driver.Request, w driver.Holder) bool { return r.Queue && !w.Mode.SameKind(r.Mode) }),
}, {
	"readers pass all but writers", "kinds/no-passing",
	passingPlaces(func(p *patched, r driver.Request, w driver.Holder) bool {
		return r.Mode == driver.Read && w.Mode == driver.Counted && p.holder(r.Name).Mode == driver.Read
	}),
}, {
	"permits pass a waiter that is no permit", "kinds/no-passing",
	passingPlaces(func(p *patched, r driver.Request, w driver.Holder) bool {
		return r.Mode == driver.Counted && w.Mode != driver.Counted && p.holder(r.Name).Mode == driver.Counted
	}),
}, {
	"permits behind another kind get in one by one", "kinds/head-shares",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Queue && r.Mode == driver.Counted && p.holder(r.Name).Mode == driver.Counted {
			return &driver.HeldError{}
		}
		return nil
	}),
}, {
	"the place of a dead owner blocks those of other kinds", "kinds/dead-place", placesStay,
}, {
	"a release wakes waiters of its own kind only", "kinds/signal",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if info, _ := p.mem.Inspect(ctx, h.Name); len(info.Waiters) > 0 && !info.Waiters[0].Mode.SameKind(h.Mode) {
				p.mute(h.Name)
			}
			return release(ctx, h)
		}
	},
}, {
	"all waiters are shown in the mode of the holder", "kinds/shown",
	func(_ *lab, p *patched) {
		p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
			info, err := p.mem.Inspect(ctx, name)
			for i := range info.Waiters {
				info.Waiters[i].Mode = info.Mode
			}
			return info, err
		}
	},
}, {
	"the limit of permits counts only once they are held", "kinds/other-limit",
	passingPlaces(func(p *patched, r driver.Request, w driver.Holder) bool {
		return r.Mode == driver.Counted && w.Mode == driver.Counted && p.holder(r.Name).Mode != driver.Counted
	}),
}, {
	"the limit of permits stays after the last of them", "kinds/other-limit",
	func(l *lab, p *patched) {
		acquire := p.acquire
		limits := map[string]int{}
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if first := limits[r.Name]; r.Mode == driver.Counted && first != 0 && first != r.Limit {
				return driver.Grant{}, driver.ErrInvalid
			}
			if r.Queue {
				limits[r.Name] = r.Limit
			}
			return acquire(ctx, r)
		}
	},
}}

// keepApart refuses another kind of lock than that of the holder.
func keepApart(_ *lab, p *patched) {
	acquire := p.acquire
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if h := p.holder(r.Name); h.Owner != "" && !h.Mode.SameKind(r.Mode) {
			return driver.Grant{}, driver.ErrInvalid
		}
		return acquire(ctx, r)
	}
}

// passingPlaces lets a request ignore some places of others.
func passingPlaces(passes func(*patched, driver.Request, driver.Holder) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			info, _ := p.mem.Inspect(ctx, r.Name)
			for _, w := range info.Waiters {
				if w.Owner != r.Owner && passes(p, r, w) {
					p.mem.Release(ctx, driver.Hold{Name: r.Name, Owner: w.Owner, Mode: w.Mode})
				}
			}
			return acquire(ctx, r)
		}
	}
}

// A backend that keeps kinds apart is sane where the harness says so.
func TestKindsApart(t *testing.T) {
	for _, c := range Checks() {
		err := tryWith(t, keepApart, c, func(h *Harness) { h.KindsApart = true })
		if err != nil && !errors.Is(err, ErrNotClaimed) {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
