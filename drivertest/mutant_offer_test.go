package drivertest

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
)

// asked replaces what a Revoke does.
func asked(revoke func(*lab, *patched, driver.Hold) error) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		recorded(l, p)
		p.revoke = func(_ context.Context, h driver.Hold) error { return revoke(l, p, h) }
	}
}

func (p *patched) revokeOne(h driver.Hold) error { return p.mem.Revoke(context.Background(), h) }

// tell calls the OnRevoke that an Owner was granted with.
func (l *lab) tell(owner string) {
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
	"nobody is told that they were asked", "revoke/asks",
	asked(func(*lab, *patched, driver.Hold) error { return nil }),
}, {
	"asking is taking", "revoke/takes-nothing",
	asked(func(_ *lab, p *patched, h driver.Hold) error {
		return errors.Join(p.revokeOne(h), p.mem.Release(context.Background(), h))
	}),
}, {
	"a holder is told each time", "revoke/once",
	asked(func(l *lab, _ *patched, h driver.Hold) error { l.tell(h.Owner); return nil }),
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
			l.tell(owner)
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
	"whoever holds is asked", "revoke/leaves-successor",
	asked(func(_ *lab, p *patched, h driver.Hold) error { return p.revokeOne(p.holder(h.Name)) }),
}, {
	"who stands in line is asked", "revoke/not-in-line",
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
	"whoever is refused asks the holder", "revoke/unasked",
	func(l *lab, p *patched) {
		recorded(l, p)
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) {
				l.tell(p.holder(r.Name).Owner)
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

var fixedMutants = []mutant{{
	"a fixed hold excludes nobody", "fixed/as-any",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Fixed {
				r.Name += " fixed"
			}
			return acquire(ctx, r)
		}
	},
}, {
	"a fixed hold is not renewed", "fixed/renewed",
	func(l *lab, p *patched) {
		recorded(l, p)
		eachRenewal(func(l *lab, p *patched, h driver.Hold) error {
			if r, ok := l.granted(h.Owner); ok && r.Fixed {
				return nil
			}
			return p.renewOne(h)
		})(l, p)
	},
}, {
	"a fixed hold has what is left of the session", "fixed/not-early",
	func(l *lab, p *patched) {
		fixedSession(l, p)
		grants(func(_ *lab, _ driver.Request, g *driver.Grant) { g.TTL = g.TTL * 2 / 3 })(l, p)
	},
}, {
	"a fixed hold ends before its TTL", "fixed/not-early",
	func(l *lab, p *patched) {
		fixedSession(l, p)
		requests(func(r *driver.Request) { r.TTL /= 2 })(l, p)
	},
}, {
	"a fixed hold lives as long as the session", "fixed/ends",
	func(l *lab, p *patched) {
		session(l, p)
		p.caps.Fixed = true
	},
}}
