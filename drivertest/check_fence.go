package drivertest

import (
	"errors"

	"github.com/distlock/distlock/driver"
)

var fenceChecks = []promise{{name: "fence/in-range", every: true, needs: need{fence: true},
	text: "A fence is above 0 and below 1<<63, and a grant has no more of them than were asked for.",
	run: func(s *scene) {
		r := s.request()
		if s.mode.Alone() {
			r.Fences = 5
		}
		s.a.mustAcquire(r, "a free lock is granted") // which looks at every grant's fences
		s.a.mustAcquire(r, "the same Owner asked again is the same hold")
	},
}, {name: "fence/over-release", every: true, needs: need{fence: true},
	text: "Fences go on rising after a release, on any connection.",
	run: func(s *scene) {
		var last driver.Grant
		for i := range 12 {
			c := s.a
			if i%3 == 1 {
				c = s.b
			}
			r := s.request()
			g := c.mustAcquire(r, "a free lock is granted")
			s.rises(last, g, "a lock that was released and taken again")
			c.free(r.Hold, nil, "the holder releases")
			last = g
		}
	},
}, {name: "fence/over-expiry", every: true, needs: need{fence: true},
	text: "Fences go on rising after a hold has ended by itself.",
	run: func(s *scene) {
		r := s.brief(s.request())
		first := s.a.mustAcquire(r, "a free lock is granted")
		s.a.fallSilent()
		second := s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
		s.rises(first, second, "a lock whose holder's TTL ended")
	},
}, {name: "fence/over-renewal", every: true, needs: need{fence: true},
	text: "Fences go on rising after renewals.",
	run: func(s *scene) {
		r := s.request()
		first := s.a.mustAcquire(r, "a free lock is granted")
		s.a.renew(r.Hold, nil, "the holder renews")
		s.rises(first, s.a.mustAcquire(r, "the same Owner asked again is the same hold"), "a renewed hold, asked for again")
		s.a.free(r.Hold, nil, "the holder releases")
		s.rises(first, s.b.mustAcquire(s.rival(r), "a released lock is free"), "a lock that was renewed and released")
	},
}, {name: "fence/over-many-repeats", every: true, needs: need{fence: true},
	text: "The successor's fence is above all that a holder got by asking again.",
	run: func(s *scene) {
		r := s.request()
		var last driver.Grant
		for range 5 {
			g := s.a.mustAcquire(r, "the same Owner asked again is the same hold")
			s.rises(last, g, "the same Owner asked again")
			last = g
		}
		s.a.free(r.Hold, nil, "the holder releases")
		s.rises(last, s.b.mustAcquire(s.rival(r), "a released lock is free"), "the successor of an Owner that asked again")
	},
}, {name: "fence/over-kinds", needs: need{fence: true},
	text: "Fences of a name go on rising when it is used for another kind of lock.",
	run: func(s *scene) {
		var last driver.Grant
		for _, m := range append(s.modes(), s.modes()...) {
			r := s.requestIn(m, "lock")
			g, ok := s.a.takeUnlessKept(r)
			if !ok {
				continue
			}
			s.rises(last, g, "a name that was free and is used for another kind of lock")
			s.a.free(r.Hold, nil, "the holder releases")
			last = g
		}
	},
}, {name: "fence/span", needs: need{fence: true},
	text: "All fences of a span are the holder's: the next grant is above the last of them.",
	run: func(s *scene) {
		r := s.request()
		r.Fences = 100
		first := s.a.mustAcquire(r, "a free lock is granted")
		second := s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.rises(first, second, "a span, asked for again")
		s.a.free(r.Hold, nil, "the holder releases")
		s.rises(second, s.b.mustAcquire(s.rival(r), "a released lock is free"), "the successor of a span")
	},
}, {name: "fence/span-over-expiry", needs: need{fence: true},
	text: "A span stays reserved when its holder's TTL ends.",
	run: func(s *scene) {
		r := s.brief(s.request())
		r.Fences = 100
		first := s.a.mustAcquire(r, "a free lock is granted")
		s.a.fallSilent()
		next := s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
		s.rises(first, next, "the successor of a span that ended by itself")
	},
}, {name: "fence/floor", needs: need{fence: true, floor: true},
	text: "Renew with Floor lifts all later fences above it.",
	run: func(s *scene) {
		r := s.request()
		g := s.a.mustAcquire(r, "a free lock is granted")
		r.Floor = g.Last() + 1000
		s.a.renew(r.Hold, nil, "the holder renews")
		s.above(r.Floor, s.a.mustAcquire(r, "the same Owner asked again is the same hold"))
		r.Floor = 0
		s.a.free(r.Hold, nil, "the holder releases")
		s.above(g.Last()+1000, s.b.mustAcquire(s.rival(r), "a released lock is free"))
	},
}, {name: "fence/floor-never-lowers", needs: need{fence: true, floor: true},
	text: "A Floor below the counter changes nothing.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		g := s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		r.Floor = 1
		s.a.renew(r.Hold, nil, "the holder renews")
		s.a.free(r.Hold, nil, "the holder releases")
		r.Floor = 0
		s.rises(g, s.b.mustAcquire(s.rival(r), "a released lock is free"), "a Floor below the counter")
	},
}, {name: "fence/floor-only-by-owner", needs: need{fence: true, floor: true},
	text: "Renew with Floor changes nothing for an Owner that does not hold.",
	run: func(s *scene) {
		const far = 1 << 40
		r := s.request()
		g := s.a.mustAcquire(r, "a free lock is granted")
		h := stranger(r)
		h.Floor = g.Last() + far
		s.b.renew(h, driver.ErrLost, "only the owner renews")
		next := s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.want(next.Fence < h.Floor, "only the owner raises the floor: fence %d after a stranger's floor of %d", next.Fence, h.Floor)
	},
}}

// takeUnlessKept must be granted, unless the backend keeps the name for another kind
// of lock.
func (c *conn) takeUnlessKept(r driver.Request) (driver.Grant, bool) {
	if c.over() {
		return driver.Grant{}, false
	}
	g, err := c.acquire(r)
	if errors.Is(err, driver.ErrInvalid) {
		return g, false
	}
	c.want(err == nil, "a free lock is granted: Acquire as %v answered %w", r.Mode, answer(err))
	c.judge(r, g)
	return g, err == nil
}
