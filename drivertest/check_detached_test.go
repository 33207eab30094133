package drivertest

import (
	"context"

	"github.com/distlock/distlock/driver"
)

// made reports whether this connection was the last to acquire for an owner.
func (p *patched) made(owner string) (made bool) {
	p.lab.locked(func() { made = p.lab.makers[owner] == p })
	return made
}

// withMakers makes the lab remember which connection made each hold and each place.
func withMakers(alter func(*lab, *patched)) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if err == nil || r.Queue {
				l.locked(func() { l.makers[r.Owner] = p })
			}
			return g, err
		}
		recorded(l, p)
		alter(l, p)
	}
}

// ownRenewals replaces Renew for the holds that other connections have made.
func ownRenewals(others func(*patched, driver.Hold) error) func(*lab, *patched) {
	return withMakers(eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		if p.made(h.Owner) {
			return p.renewOne(h)
		}
		return others(p, h)
	}))
}

var detachedMutants = []mutant{{
	"Close releases what it claims to leave", "detached/taken-over",
	withMakers(func(l *lab, p *patched) {
		p.close = func() error {
			owners := map[string]driver.Request{}
			l.locked(func() {
				for owner, r := range l.owners {
					owners[owner] = r
				}
			})
			for owner, r := range owners {
				if p.made(owner) {
					p.mem.Release(context.Background(), r.Hold)
				}
			}
			return p.mem.Close()
		}
	}),
}, {
	"the hold of another connection is lost", "detached/taken-over",
	ownRenewals(func(*patched, driver.Hold) error { return driver.ErrLost }),
}, {
	"the hold of another connection is not released", "detached/taken-over",
	withMakers(func(_ *lab, p *patched) {
		p.release = func(ctx context.Context, h driver.Hold) error {
			if !p.made(h.Owner) {
				return driver.ErrLost
			}
			return p.mem.Release(ctx, h)
		}
	}),
}, {
	"the Owner of another connection is refused", "detached/shared",
	withMakers(func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if !p.made(r.Owner) && p.holds(r.Name, r.Owner) != 0 {
				return driver.Grant{}, &driver.HeldError{}
			}
			return acquire(ctx, r)
		}
	}),
}, {
	"the hold of another connection is not renewed", "detached/renewed",
	ownRenewals(func(p *patched, h driver.Hold) error {
		h.TTL = 1
		return p.renewOne(h)
	}),
}, {
	"a hold that was renewed through another connection has no end", "detached/ends",
	ownRenewals(func(p *patched, h driver.Hold) error {
		h.TTL *= 1000
		return p.renewOne(h)
	}),
}, {
	"a place belongs to its connection", "detached/place",
	withMakers(func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if r.Queue && !p.made(r.Owner) && p.holds(r.Name, r.Owner) == 0 {
				p.mem.Release(ctx, r.Hold)
			}
			return acquire(ctx, r)
		}
	}),
}}
