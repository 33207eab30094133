package drivertest

import (
	"time"

	"github.com/distlock/distlock/driver"
)

var againChecks = []promise{{
	name:  "again/same-owner",
	text:  "Asking again with the same Owner is granted, under greater fences.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		first := s.a.take(r, "a free lock is granted")
		second := s.a.take(r, "the same Owner asked again is the same hold")
		s.rises(first, second, "the same Owner asked again")
		s.b.refused(s.rival(r), "an Owner that asked again holds on")
	},
}, {
	name:  "again/released-once",
	text:  "A hold that was asked for many times ends with one Release.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		for range 3 {
			s.a.take(r, "the same Owner asked again is the same hold")
		}
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(s.rival(r), "the same Owner asked again counts once: one Release frees it")
		s.a.free(r.Hold, driver.ErrLost, "the same Owner asked again counts once: nothing is left of it")
	},
}, {
	name:  "again/counts-once",
	text:  "An Owner that asks again for its permit takes no second one.",
	needs: need{modes: driver.Modes(driver.Counted)},
	run: func(s *scene) {
		r := s.permit(2)
		s.a.take(r, "a free permit is granted")
		s.a.take(r, "the same Owner asked again is the same hold")
		s.b.take(s.permit(2), "the same Owner asked again counts once: the second of two permits is free")
		s.b.refused(s.permit(2), "no more permits than the limit")
	},
}, {
	name:  "again/restarts-ttl",
	text:  "Asking again with the same Owner restarts the TTL.",
	every: true,
	run: func(s *scene) {
		r := s.brief(s.request())
		first := time.Now()
		s.a.take(r, "a free lock is granted")
		s.sleep(r.TTL * 6 / 10)
		since := time.Now()
		s.a.within(first, r.TTL).take(r, "the same Owner asked again is the same hold")
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "asking again restarts the TTL")
	},
}, {
	name:  "again/late",
	text:  "An attempt that arrives late, after a renewal for longer, shortens nothing.",
	every: true,
	run: func(s *scene) {
		r := s.lengthened(s.request())
		s.a.take(s.brief(r), "the same Owner asked again is the same hold")
		s.outlives(r, "an attempt for less than is left does not shorten a hold")
	},
}}
