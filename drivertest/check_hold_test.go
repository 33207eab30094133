package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// eachRenewal replaces Renew by f, hold by hold.
func eachRenewal(f func(*lab, *patched, driver.Hold) error) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			errs := make([]error, len(holds))
			for i, h := range holds {
				errs[i] = f(l, p, h)
			}
			return errs
		}
	}
}

func (p *patched) renewOne(h driver.Hold) error {
	return p.mem.Renew(context.Background(), []driver.Hold{h})[0]
}

// recorded makes the lab remember all grants, by owner.
func recorded(l *lab, p *patched) {
	acquire := p.acquire
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		g, err := acquire(ctx, r)
		if err == nil {
			l.locked(func() { l.owners[r.Owner] = r })
		}
		return g, err
	}
}

func (l *lab) granted(owner string) (r driver.Request, ok bool) {
	l.locked(func() { r, ok = l.owners[owner] })
	return r, ok
}

// grants replaces grants.
func grants(change func(*lab, driver.Request, *driver.Grant)) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if err == nil {
				l.locked(func() { change(l, r, &g) })
			}
			return g, err
		}
	}
}

// requests replaces the requests.
func requests(change func(*driver.Request)) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			asked := r.TTL
			change(&r)
			g, err := acquire(ctx, r)
			g.TTL = asked
			return g, err
		}
	}
}

// attempts lets f change each request before it is made, or refuse it.
func attempts(f func(p *patched, r *driver.Request) error) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if err := f(p, &r); err != nil {
				return driver.Grant{}, err
			}
			return acquire(ctx, r)
		}
	}
}

// setLife makes those attempts, or renewals, set the life of a hold, also to less than was left.
func (p *patched) setLife(attempts func(driver.Request) bool, renewals bool) {
	acquire := p.acquire
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		sets := attempts(r)
		g, err := acquire(ctx, r)
		if err == nil {
			p.lab.lives.Ask(p.mem, r.Hold, sets)
		}
		return g, err
	}
	eachRenewal(func(l *lab, p *patched, h driver.Hold) error {
		err := p.renewOne(h)
		if err == nil {
			l.lives.Ask(p.mem, h, renewals)
		}
		return err
	})(p.lab, p)
}

var holdMutants = []mutant{{
	"acquire asks its own memory", "exclusion/two-connections",
	func(_ *lab, p *patched) { p.acquire = memlock.New().Acquire },
}, {
	"holding is by connection", "exclusion/one-connection",
	func(_ *lab, p *patched) {
		own := driver.NewOwner()
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Owner = own
			return acquire(ctx, r)
		}
	},
}, {
	"acquire is not atomic", "exclusion/race",
	func(_ *lab, p *patched) { p.acquire = p.lookThenTake },
}, {
	"acquire is not atomic, seldom", "exclusion/counter",
	func(_ *lab, p *patched) { p.acquire = p.lookThenTake },
}, {
	"a refused attempt takes a place unasked", "exclusion/refusal-takes-nothing",
	requests(func(r *driver.Request) { r.Queue = true }),
}, {
	"asking again starts a second hold", "again/released-once",
	func(l *lab, p *patched) {
		release := p.release
		left := map[string]int{}
		grants(func(_ *lab, r driver.Request, _ *driver.Grant) { left[r.Owner]++ })(l, p)
		p.release = func(ctx context.Context, h driver.Hold) error {
			var more bool
			l.locked(func() { left[h.Owner]--; more = left[h.Owner] > 0 })
			if more {
				return nil
			}
			return release(ctx, h)
		}
	},
}, {
	"asking again is refused", "again/same-owner",
	attempts(func(p *patched, r *driver.Request) error {
		if p.holds(r.Name, r.Owner) != 0 {
			return &driver.HeldError{}
		}
		return nil
	}),
}, {
	"asking again leaves the TTL as it was", "again/restarts-ttl",
	func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
			if p.holds(r.Name, r.Owner) != 0 {
				l.locked(func() { g = l.last[r.Owner] })
				return g, nil
			}
			g, err = acquire(ctx, r)
			l.locked(func() { l.last[r.Owner] = g })
			return g, err
		}
	},
}, {
	"holds do not end", "ttl/expires",
	requests(func(r *driver.Request) { r.TTL = 24 * time.Hour }),
}, {
	"TTL rounded down to tenths of a second", "ttl/not-early",
	requests(func(r *driver.Request) { r.TTL = r.TTL.Truncate(100 * time.Millisecond) }),
}, {
	"TTL rounded down to hundredths of a second", "ttl/not-early",
	requests(func(r *driver.Request) { r.TTL = r.TTL.Truncate(10 * time.Millisecond) }),
}, {
	"a grant reports whole milliseconds, rounded down", "ttl/granted",
	grants(func(_ *lab, _ driver.Request, g *driver.Grant) { g.TTL = g.TTL.Truncate(time.Millisecond) }),
}, {
	"the end of a hold of ten years overflows, and is in the past", "ttl/longest",
	func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if err == nil && r.TTL >= driver.MaxTTL {
				p.mem.Release(ctx, r.Hold)
			}
			return g, err
		}
	},
}, {
	"a refusal reports twice the time left", "ttl/retry",
	retries(func(d time.Duration) time.Duration { return 2 * d }),
}, {
	"renew by anyone", "renew/only-by-owner",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		h.Owner = p.holder(h.Name).Owner
		return p.renewOne(h)
	}),
}, {
	"renewal revives a hold that has ended", "renew/never-revives",
	func(l *lab, p *patched) {
		recorded(l, p)
		eachRenewal(revive)(l, p)
	},
}, {
	"renewal acquires", "renew/never-held",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		_, err := p.mem.Acquire(context.Background(), driver.Request{Hold: h, Limit: 1})
		return err
	}),
}, {
	"renewal overwrites a successor", "renew/leaves-successor",
	func(l *lab, p *patched) {
		recorded(l, p)
		eachRenewal(func(l *lab, p *patched, h driver.Hold) error {
			if _, ok := l.granted(h.Owner); ok && p.holds(h.Name, h.Owner) == 0 {
				p.mem.Release(context.Background(), p.holder(h.Name))
			}
			return revive(l, p, h)
		})(l, p)
	},
}, {
	"renewal only says yes", "renew/extends",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		if p.holds(h.Name, h.Owner) == 0 {
			return driver.ErrLost
		}
		return nil
	}),
}, {
	"renewal sets a life", "renew/late",
	func(_ *lab, p *patched) { p.setLife(func(driver.Request) bool { return false }, true) },
}, {
	"renewals answered in the wrong order", "renew/batch",
	func(_ *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			errs := renew(ctx, holds)
			slices.Reverse(errs)
			return errs
		}
	},
}, {
	"one lost hold makes the whole batch lost", "renew/batch",
	func(_ *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			errs := renew(ctx, holds)
			if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
				return slices.Repeat(errs[i:i+1], len(errs))
			}
			return errs
		}
	},
}, {
	"a batch is cut at a hundred", "renew/big-batch",
	func(_ *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			return renew(ctx, holds[:min(len(holds), 100)])
		}
	},
}, {
	"ErrLost on a mere network error", "ctx/renew", lostWithoutAnAnswer,
}, {
	"ErrLost on a mere network error, when it breaks", "cut/renew", lostWithoutAnAnswer,
}, {
	"release by anyone", "release/only-by-owner",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			h.Owner = p.holder(h.Name).Owner
			return release(ctx, h)
		}
	},
}, {
	"release hits a successor", "release/leaves-successor", releaseByName,
}, {
	"a force unlock hits a successor", "release/force-spares-successor", releaseByName,
}, {
	"release always succeeds", "release/twice", releaseAlways,
}, {
	"only the connection that took it can release", "release/force",
	func(l *lab, p *patched) {
		acquire, release := p.acquire, p.release
		mine := map[string]bool{}
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			l.locked(func() { mine[r.Owner] = true })
			return acquire(ctx, r)
		}
		p.release = func(ctx context.Context, h driver.Hold) (err error) {
			var ok bool
			if l.locked(func() { ok = mine[h.Owner] }); !ok {
				return driver.ErrLost
			}
			return release(ctx, h)
		}
	},
}, {
	"a released lock stays closed for a while", "exclusion/free-after-release",
	afterRelease(func(p *patched, h driver.Hold) {
		expired := driver.Request{Hold: h, Limit: 1}
		expired.Owner, expired.TTL = driver.NewOwner(), 10*time.Millisecond
		p.mem.Acquire(context.Background(), expired)
	}),
}, {
	"asking again sets a life", "again/late",
	func(_ *lab, p *patched) { p.setLife(func(driver.Request) bool { return true }, false) },
}, {
	"a downgrade sets a life", "shared/downgrade-late",
	func(_ *lab, p *patched) {
		p.setLife(func(r driver.Request) bool { return r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write }, false)
	},
}, {
	"a second downgrade sets a life", "shared/downgrade-late",
	func(_ *lab, p *patched) {
		p.setLife(func(r driver.Request) bool { return r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Read }, false)
	},
}, {
	"a refusal reports a negative time", "ttl/retry-is-enough",
	retries(func(d time.Duration) time.Duration { return -d }),
}, {
	"renewal revives a released hold", "renew/after-release",
	func(l *lab, p *patched) {
		recorded(l, p)
		eachRenewal(revive)(l, p)
	},
}, {
	"a batch of nothing fails", "renew/empty-batch",
	func(_ *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			if len(holds) == 0 {
				return []error{errors.New("syntax error near ()")}
			}
			return renew(ctx, holds)
		}
	},
}, {
	"release of nothing succeeds", "release/never-held", releaseAlways,
}, {
	"a hold that has ended is released", "release/expired", releaseAlways,
}}

// retries replaces the time in a refusal.
func retries(change func(time.Duration) time.Duration) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if held, ok := errors.AsType[*driver.HeldError](err); ok {
				held.Retry = change(held.Retry)
			}
			return g, err
		}
	}
}

// afterRelease does something more when a hold has been released.
func afterRelease(more func(*patched, driver.Hold)) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			err := release(ctx, h)
			if err == nil {
				more(p, h)
			}
			return err
		}
	}
}

func releaseAlways(_ *lab, p *patched) {
	release := p.release
	p.release = func(ctx context.Context, h driver.Hold) error {
		if err := release(ctx, h); !errors.Is(err, driver.ErrLost) {
			return err
		}
		return nil
	}
}

// lookThenTake takes a lock that was free a moment ago.
func (p *patched) lookThenTake(ctx context.Context, r driver.Request) (driver.Grant, error) {
	free := p.holder(r.Name).Owner == ""
	time.Sleep(20 * time.Microsecond)
	if free {
		p.mem.Release(ctx, p.holder(r.Name))
	}
	return p.mem.Acquire(ctx, r)
}

func revive(l *lab, p *patched, h driver.Hold) error {
	err := p.renewOne(h)
	if r, ok := l.granted(h.Owner); ok && errors.Is(err, driver.ErrLost) {
		_, err = p.mem.Acquire(context.Background(), r)
	}
	return err
}

func lostWithoutAnAnswer(_ *lab, p *patched) {
	renew := p.renew
	p.renew = func(ctx context.Context, holds []driver.Hold) []error {
		errs := renew(ctx, holds)
		for i, err := range errs {
			if err != nil {
				errs[i] = driver.ErrLost
			}
		}
		return errs
	}
}

// releaseByName lets every earlier holder release.
func releaseByName(l *lab, p *patched) {
	recorded(l, p)
	release := p.release
	p.release = func(ctx context.Context, h driver.Hold) error {
		if _, ok := l.granted(h.Owner); ok {
			if now := p.holder(h.Name); now.Owner != "" {
				h.Owner = now.Owner
			}
		}
		return release(ctx, h)
	}
}

var fixedMutants = []mutant{{
	"a fixed hold excludes nobody", "fixed/as-any",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Fixed {
			r.Name += " fixed"
		}
		return nil
	}),
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
	"a fixed hold has what others have left", "fixed/not-early",
	grants(func(_ *lab, r driver.Request, g *driver.Grant) {
		if r.Fixed {
			g.TTL = g.TTL * 2 / 3
		}
	}),
}, {
	"a fixed hold ends before its TTL", "fixed/not-early",
	requests(func(r *driver.Request) {
		if r.Fixed {
			r.TTL /= 2
		}
	}),
}, {
	"a fixed hold lives as long as its connection", "fixed/ends",
	func(l *lab, p *patched) {
		session(l, p)
		p.caps.Session, p.caps.Detached = false, false
	},
}}
