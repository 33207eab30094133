package drivertest

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
)

var fenceMutants = []mutant{{
	"fence restarts after a release", "fence/over-release",
	func(l *lab, p *patched) {
		grants(func(l *lab, r driver.Request, g *driver.Grant) {
			base := l.last["base of "+r.Name].Fence
			l.last["true "+r.Name] = *g
			g.Fence -= base
		})(l, p)
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			err := release(ctx, h)
			if err == nil {
				l.locked(func() { l.last["base of "+h.Name] = l.last["true "+h.Name] })
			}
			return err
		}
	},
}, {
	"fence reused after expiry", "fence/over-expiry",
	func(l *lab, p *patched) {
		grants(func(l *lab, r driver.Request, g *driver.Grant) {
			if old, ok := l.last[r.Name]; ok && l.notes[r.Name] != r.Owner {
				g.Fence = old.Fence
			}
			l.last[r.Name], l.notes[r.Name] = *g, r.Owner
		})(l, p)
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			l.locked(func() { delete(l.last, h.Name) })
			return release(ctx, h)
		}
	},
}, {
	"the same fence when asked again", "again/same-owner",
	grants(func(l *lab, r driver.Request, g *driver.Grant) {
		if old, ok := l.last[r.Owner]; ok {
			g.Fence = old.Fence
		}
		l.last[r.Owner] = *g
	}),
}, {
	"one fence counter per connection", "fence/over-release",
	func(l *lab, p *patched) {
		count := map[string]uint64{}
		grants(func(_ *lab, r driver.Request, g *driver.Grant) {
			count[r.Name]++
			g.Fence = count[r.Name]
		})(l, p)
	},
}, {
	"one fence counter per kind of lock", "fence/over-kinds",
	grants(func(l *lab, r driver.Request, g *driver.Grant) {
		key := r.Mode.String() + r.Name
		g.Fence = l.last[key].Fence + 1
		l.last[key] = *g
	}),
}, {
	"span not reserved", "fence/span",
	func(l *lab, p *patched) {
		requests(func(r *driver.Request) { r.Fences = 1 })(l, p)
		grants(func(_ *lab, r driver.Request, g *driver.Grant) { g.Fences = r.Fences })(l, p)
	},
}, {
	"span not reserved over expiry", "fence/span-over-expiry",
	func(l *lab, p *patched) {
		requests(func(r *driver.Request) { r.Fences = 1 })(l, p)
		grants(func(_ *lab, r driver.Request, g *driver.Grant) { g.Fences = r.Fences })(l, p)
	},
}, {
	"more fences than asked for", "fence/in-range",
	grants(func(_ *lab, _ driver.Request, g *driver.Grant) { g.Fences *= 2 }),
}, {
	"fences start at 0", "fence/in-range",
	grants(func(_ *lab, _ driver.Request, g *driver.Grant) { g.Fence-- }),
}, {
	"floor ignored", "fence/floor",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		h.Floor = 0
		return p.renewOne(h)
	}),
}, {
	"floor raised by anyone", "fence/floor-only-by-owner",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		err := p.renewOne(h)
		if errors.Is(err, driver.ErrLost) && h.Floor > 0 {
			h.Owner = p.holder(h.Name).Owner
			p.renewOne(h)
		}
		return err
	}),
}, {
	"renewal sets the counter back", "fence/over-renewal",
	func(l *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			l.locked(func() { l.notes[holds[0].Name] = "renewed" })
			return renew(ctx, holds)
		}
		grants(func(l *lab, r driver.Request, g *driver.Grant) {
			if l.notes[r.Name] != "" {
				g.Fence = 1
			}
		})(l, p)
	},
}, {
	"fences of those who ask again are not counted", "fence/over-many-repeats",
	grants(func(l *lab, r driver.Request, g *driver.Grant) {
		if old, ok := l.last[r.Owner]; ok {
			g.Fence = old.Fence + 1000
		}
		l.last[r.Owner] = *g
	}),
}, {
	"a floor sets the counter, also back", "fence/floor-never-lowers",
	func(l *lab, p *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			if h := holds[0]; h.Floor > 0 {
				l.locked(func() { l.last["floor of "+h.Name] = driver.Grant{Fence: h.Floor} })
			}
			return renew(ctx, holds)
		}
		grants(func(l *lab, r driver.Request, g *driver.Grant) {
			if floor, ok := l.last["floor of "+r.Name]; ok {
				g.Fence = floor.Fence
			}
		})(l, p)
	},
}, {
	"readers share the last writer's fence", "shared/fence-above-ended",
	grants(func(l *lab, r driver.Request, g *driver.Grant) {
		if last, ok := l.last[r.Name]; ok && r.Mode == driver.Read {
			g.Fence = last.Fence
		}
		l.last[r.Name] = *g
	}),
}, {
	"fences of readers are not counted", "shared/writer-fence-above-readers",
	grants(func(_ *lab, r driver.Request, g *driver.Grant) {
		if r.Mode == driver.Read {
			g.Fence += 1000
		}
	}),
}, {
	"a downgrade keeps the fence", "shared/downgrade-fence",
	grants(func(l *lab, r driver.Request, g *driver.Grant) {
		if old, ok := l.last[r.Owner]; ok && r.Mode == driver.Read {
			g.Fence = old.Fence
		}
		l.last[r.Owner] = *g
	}),
}}
