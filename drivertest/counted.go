package drivertest

import (
	"sync/atomic"

	"github.com/distlock/distlock/driver"
)

var semaphore = need{modes: driver.Modes(driver.Counted)}

var countedChecks = []promise{{
	name:  "counted/limit",
	text:  "As many permits as the limit, and not one more.",
	needs: semaphore,
	run: func(s *scene) {
		for range 2 {
			s.a.take(s.permit(4), "permits up to the limit")
			s.b.take(s.permit(4), "permits up to the limit")
		}
		s.a.refused(s.permit(4), "no more permits than the limit")
		s.b.refused(s.permit(4), "no more permits than the limit")
	},
}, {
	name:  "counted/release-frees-one",
	text:  "A released permit lets one in.",
	needs: semaphore,
	run: func(s *scene) {
		one, two := s.permit(2), s.permit(2)
		s.a.take(one, "permits up to the limit")
		s.b.take(two, "permits up to the limit")
		s.a.free(one.Hold, nil, "the holder releases")
		s.b.take(s.permit(2), "a released permit is free")
		s.b.refused(s.permit(2), "a released permit lets one in, not two")
	},
}, {
	name:  "counted/double-release-frees-one",
	text:  "A permit that is released twice lets one in, not two.",
	needs: semaphore,
	run: func(s *scene) {
		one, two := s.permit(2), s.permit(2)
		s.a.take(one, "permits up to the limit")
		s.b.take(two, "permits up to the limit")
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.free(one.Hold, driver.ErrLost, "a released permit can't be released again")
		s.b.take(s.permit(2), "a released permit is free")
		s.b.refused(s.permit(2), "a permit released twice lets one in, not two")
	},
}, {
	name:  "counted/race",
	text:  "Of many attempts at one moment exactly the limit is granted, with distinct fences.",
	needs: semaphore,
	run:   racePermits,
}, {
	name:  "counted/distinct-fences",
	text:  "No two permits have the same fence.",
	needs: need{modes: driver.Modes(driver.Counted), fence: true},
	run: func(s *scene) {
		seen := map[uint64]bool{}
		for range 4 {
			for _, c := range []*conn{s.a, s.b} {
				g := c.take(s.permit(8), "permits up to the limit")
				s.want(!seen[g.Fence], "permits have distinct fences: %d was given twice", g.Fence)
				seen[g.Fence] = true
			}
		}
	},
}, {
	name:  "counted/other-limit",
	text:  "Another limit than that in use is ErrInvalid, and takes nothing.",
	needs: semaphore,
	run: func(s *scene) {
		r := s.permit(3)
		s.a.take(r, "permits up to the limit")
		s.b.fails(s.permit(2), driver.ErrInvalid, "all users of a semaphore agree on its limit")
		s.b.fails(s.permit(4), driver.ErrInvalid, "all users of a semaphore agree on its limit")
		s.b.take(s.permit(3), "an attempt with another limit takes nothing")
		s.b.take(s.permit(3), "an attempt with another limit takes nothing")
		s.b.refused(s.permit(3), "an attempt with another limit does not change it")
	},
}, {
	name:  "counted/expired-permit",
	text:  "A permit whose TTL ended is free again, and only that one.",
	needs: semaphore,
	run: func(s *scene) {
		s.b.take(s.permit(2), "permits up to the limit")
		s.a.take(s.brief(s.permit(2)), "permits up to the limit")
		s.a.fallSilent()
		s.b.eventually(s.permit(2), s.TTL, "a permit without renewal ends with its TTL")
		s.b.refused(s.permit(2), "the end of a permit lets one in, not two")
	},
}, {
	name:  "counted/renew-one",
	text:  "Renewing one permit prolongs no other.",
	needs: need{modes: driver.Modes(driver.Counted), ownTTL: true},
	run: func(s *scene) {
		one, two := s.permit(2), s.brief(s.permit(2))
		s.a.take(one, "permits up to the limit")
		s.a.take(two, "permits up to the limit")
		s.a.renew(one.Hold, nil, "the holder renews")
		s.b.eventually(s.permit(2), s.TTL, "renewing one permit prolongs no other")
		s.a.renew(two.Hold, driver.ErrLost, "a permit that has ended can't be renewed")
		s.a.renew(one.Hold, nil, "the end of a permit ends no other")
	},
}}

// permit asks for one of limit permits.
func (s *scene) permit(limit int) driver.Request {
	r := s.requestIn(driver.Counted, "lock")
	r.Limit = limit
	return r
}

func racePermits(s *scene) {
	const limit = 3
	for range 8 {
		var won [16]driver.Request
		var winners atomic.Int32
		together(len(won), func(i int) {
			c, r := s.a, s.permit(limit)
			if i%2 == 1 {
				c = s.b
			}
			if g, err := c.acquire(r); err == nil {
				won[i] = r
				winners.Add(1)
			} else {
				c.heldError(g, err, "an attempt is granted or refused")
			}
		})
		s.want(winners.Load() == limit, "exactly the limit is granted: got %d of %d permits", winners.Load(), limit)
		for _, r := range won {
			if r.Owner != "" {
				s.a.free(r.Hold, nil, "the holder releases")
			}
		}
	}
}
