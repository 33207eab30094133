package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// besideOnRefusal grants a refused request under another name.
func besideOnRefusal(mode driver.Mode, beside func(driver.Hold) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			if errors.Is(err, driver.ErrHeld) && r.Mode == mode && beside(p.holder(r.Name)) {
				r.Name += " beside"
				return acquire(ctx, r)
			}
			return g, err
		}
	}
}

// sharedTTL gives all holders in a mode the TTL of the latest one.
func sharedTTL(mode driver.Mode) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := acquire(ctx, r)
			info, _ := p.mem.Inspect(ctx, r.Name)
			for _, h := range info.Holders {
				if err == nil && r.Mode == mode {
					p.lab.lives.Ask(p.mem, driver.Hold{Name: r.Name, Owner: h.Owner, Mode: h.Mode, TTL: r.TTL}, true)
				}
			}
			return g, err
		}
	}
}

var modeMutants = []mutant{{
	"readers beside a writer", "shared/writer-excludes-readers",
	besideOnRefusal(driver.Read, func(h driver.Hold) bool { return h.Mode == driver.Write }),
}, {
	"a writer beside readers", "shared/reader-excludes-writer",
	besideOnRefusal(driver.Write, func(h driver.Hold) bool { return h.Mode == driver.Read }),
}, {
	"a writer beside readers, under load", "shared/race",
	besideOnRefusal(driver.Write, func(h driver.Hold) bool { return h.Mode == driver.Read }),
}, {
	"readers exclude each other", "shared/readers-share",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Mode == driver.Read && p.holder(r.Name).Owner != "" {
			return &driver.HeldError{}
		}
		return nil
	}),
}, {
	"all readers have the TTL of the last", "shared/readers-expire-alone", sharedTTL(driver.Read),
}, {
	"a downgrade lets a writer in", "shared/downgrade-race",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write {
			p.mem.Release(context.Background(), r.Hold)
			time.Sleep(time.Millisecond)
		}
		return nil
	}),
}, {
	"a downgraded writer still keeps readers out", "shared/downgrade",
	attempts(func(p *patched, r *driver.Request) error {
		if p.holds(r.Name, r.Owner) == driver.Write {
			r.Mode = driver.Write
		}
		return nil
	}),
}, {
	"the same Owner counted twice", "again/counts-once",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Mode == driver.Counted && p.holds(r.Name, r.Owner) != 0 {
			r.Owner += " again"
		}
		return nil
	}),
}, {
	"limit off by one", "counted/limit",
	requests(func(r *driver.Request) { r.Limit++ }),
}, {
	"limit off by one, under load", "counted/race",
	requests(func(r *driver.Request) { r.Limit++ }),
}, {
	"the first limit counts for all", "counted/other-limit",
	func(l *lab, p *patched) {
		requests(func(r *driver.Request) {
			l.locked(func() {
				if first, ok := l.owners[r.Name]; ok {
					r.Limit = first.Limit
				}
				l.owners[r.Name] = *r
			})
		})(l, p)
	},
}, {
	"all permits have one fence", "counted/distinct-fences",
	grants(func(_ *lab, r driver.Request, g *driver.Grant) {
		if r.Mode == driver.Counted {
			g.Fence = 7
		}
	}),
}, {
	"renewing one permit renews all", "counted/renew-one",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		info, _ := p.mem.Inspect(context.Background(), h.Name)
		for _, other := range info.Holders {
			all := h
			all.Owner = other.Owner
			p.renewOne(all)
		}
		return p.renewOne(h)
	}),
}, {
	"a mode that is not claimed is accepted", "caps/unclaimed-mode",
	func(_ *lab, p *patched) { p.caps.Modes = driver.Modes(driver.Exclusive) },
}, {
	"a place is accepted where no queue is claimed", "caps/unclaimed-queue",
	func(_ *lab, p *patched) { p.caps.Queueing = driver.QueueNever },
}, {
	"a place is accepted in a mode that has no queue", "caps/unclaimed-queue",
	func(_ *lab, p *patched) { p.caps.QueuedModes = driver.Modes(driver.Exclusive) },
}, {
	"a queue is claimed for a mode that is not", "caps/sensible",
	func(_ *lab, p *patched) {
		p.caps.Modes, p.caps.QueuedModes = driver.Modes(driver.Exclusive), driver.Modes(driver.Counted)
	},
}, {
	"a downgrade that is not claimed is accepted", "caps/unclaimed-downgrade",
	func(_ *lab, p *patched) { p.caps.Downgrade = false },
}, {
	"a downgrade that is not claimed gives up the hold", "caps/unclaimed-downgrade",
	func(_ *lab, p *patched) {
		p.caps.Downgrade = false
		p.acquire = refuse(p.acquire, func(r driver.Request) bool {
			return r.Mode == driver.Read && p.holds(r.Name, r.Owner) == driver.Write && p.mem.Release(context.Background(), r.Hold) == nil
		})
	},
}, {
	"a read/write lock without writers is claimed", "caps/sensible",
	func(_ *lab, p *patched) { p.caps.Modes = driver.Modes(driver.Exclusive, driver.Read) },
}, {
	"holds end with a session, and for those who watch", "caps/sensible",
	func(l *lab, p *patched) {
		session(l, p)
		p.caps.Observed = true
	},
}, {
	"a hold ends also for those who have not watched it", "ttl/newcomer",
	func(_ *lab, p *patched) { p.caps.Observed = true },
}, {
	"what is late and not observed", "caps/sensible",
	func(_ *lab, p *patched) { p.caps.Late = time.Second },
}, {
	"a hold ends for nobody who has just come", "ttl/late",
	func(_ *lab, p *patched) {
		p.caps.Observed, p.caps.Late = true, time.Millisecond
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.TTL += time.Hour
			return acquire(ctx, r)
		}
	},
}, {
	"each connection has its own name", "caps/constant",
	func(_ *lab, p *patched) { p.caps.Name = driver.NewOwner() },
}, {
	"a released permit is not given back", "counted/release-frees-one",
	afterRelease(func(p *patched, h driver.Hold) {
		h.Owner, h.TTL = driver.NewOwner(), time.Hour
		p.mem.Acquire(context.Background(), driver.Request{Hold: h, Limit: 2})
	}),
}, {
	"each release of a permit gives one back", "counted/double-release-frees-one",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			err := release(ctx, h)
			if errors.Is(err, driver.ErrLost) {
				release(ctx, p.holder(h.Name))
			}
			return err
		}
	},
}, {
	"all permits have the TTL of the last", "counted/expired-permit", sharedTTL(driver.Counted),
}}
