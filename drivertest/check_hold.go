package drivertest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var exclusionChecks = []promise{{name: "exclusion/two-connections", every: true,
	text: "What one connection holds is refused to another.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.b.refused(s.rival(r), "a refusal does not wear off")
	},
}, {name: "exclusion/one-connection", every: true,
	text: "Two owners exclude each other on one connection too.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.refused(s.rival(r), "holding is by owner, not by connection")
	},
}, {name: "exclusion/free-after-release", every: true,
	text: "A released lock is granted to the next at once.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.rival(r), "a released lock is free")
	},
}, {name: "exclusion/refusal-takes-nothing", every: true,
	text: "A refused attempt without Queue leaves nothing behind.",
	run: func(s *scene) {
		r := s.request()
		refused := s.rival(r)
		s.a.hold(r)
		s.b.refused(refused, "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.free(refused.Hold, driver.ErrLost, "a refused attempt has nothing to release")
		s.a.mustAcquire(s.rival(r), "a refused attempt blocks nothing later")
	},
}, {name: "exclusion/race", every: true,
	text: "Of many attempts at one moment exactly one is granted.",
	run: func(s *scene) {
		for range 12 {
			race(s)
		}
	},
}, {name: "exclusion/counter", every: true,
	text: "What is done under the lock is never done by two at once.",
	run:  countUnderLock,
}}

// race lets 16 owners on each of two connections try at one moment. While a backend of several members
// releases what the race before left there, all may fail, so a race without a winner is repeated twice.
func race(s *scene) {
	winners := 0
	for try := 0; try < 3 && winners == 0 && !s.over(); try++ {
		if try > 0 {
			s.sleep(s.pause())
		}
		winners = raceOnce(s)
	}
	s.want(winners == 1 || winners == 0 && s.over(), "exactly one of many attempts at one moment is granted: got %d grants", winners)
}

// raceOnce returns the number of winners.
func raceOnce(s *scene) int {
	first, begun := s.request(), time.Now()
	winners := s.attempts(32, func() driver.Request { return s.rival(first) })
	if winners == 0 && time.Since(begun) > s.TTL/2 {
		s.fail(errSlow) // a grant may have come too late to be one
	}
	return winners
}

// attempts makes n attempts at one moment, half of them on each connection, and returns how many were
// granted. It releases those on their own connections: requests that are in flight there could arrive
// after a release on another one.
func (s *scene) attempts(n int, request func() driver.Request) (granted int) {
	var mu sync.Mutex
	var releases []func()
	start := make(chan struct{})
	time.AfterFunc(time.Millisecond, func() { close(start) })
	together(n, func(i int) {
		c, r := s.conn(i), request()
		<-start
		g, err := c.acquire(r)
		if err != nil {
			c.heldError(g, err, "an attempt is granted or refused")
			return
		}
		mu.Lock()
		defer mu.Unlock()
		releases = append(releases, func() { c.free(r.Hold, nil, "the winner releases") })
	})
	for _, release := range releases {
		release()
	}
	return len(releases)
}

// countUnderLock lets 4 owners on each connection add one to a number in two steps
// that only a lock makes safe. It goes on for 240 turns or a second and a half.
func countUnderLock(s *scene) {
	const turns = 240
	var number, last atomic.Uint64
	until := time.Now().Add(1500 * time.Millisecond)
	together(8, func(i int) {
		c := s.conn(i)
		for time.Now().Before(until) && number.Load() < turns && !s.over() {
			r := s.rival(s.request())
			if g, ok := tryOnce(c, r); ok {
				n := number.Load()
				s.want(!s.caps.Fence || g.Fence > last.Swap(g.Last()), "fences strictly increase from holder to holder: got %d", g.Fence)
				s.sleep(50 * time.Microsecond)
				s.want(number.Swap(n+1) == n, "one holder at a time: two worked under the lock at once")
				c.free(r.Hold, nil, "the holder releases")
			}
		}
	})
	s.want(number.Load() > 0 || s.over(), "a lock that is released again and again is granted again and again")
}

var againChecks = []promise{{name: "again/same-owner", every: true,
	text: "Asking again with the same Owner is granted, under greater fences.",
	run: func(s *scene) {
		r := s.request()
		first := s.a.mustAcquire(r, "a free lock is granted")
		second := s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.rises(first, second, "the same Owner asked again")
		s.b.refused(s.rival(r), "an Owner that asked again holds on")
	},
}, {name: "again/released-once", every: true,
	text: "A hold that was asked for many times ends with one Release.",
	run: func(s *scene) {
		r := s.request()
		for range 3 {
			s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		}
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.rival(r), "the same Owner asked again counts once: one Release frees it")
		s.a.free(r.Hold, driver.ErrLost, "the same Owner asked again counts once: nothing is left of it")
	},
}, {name: "again/counts-once", needs: need{modes: driver.Modes(driver.Counted)},
	text: "An Owner that asks again for its permit takes no second one.",
	run: func(s *scene) {
		r := s.permit(2)
		s.a.mustAcquire(r, "a free permit is granted")
		s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.b.mustAcquire(s.permit(2), "the same Owner asked again counts once: the second of two permits is free")
		s.b.refused(s.permit(2), "no more permits than the limit")
	},
}, {name: "again/restarts-ttl", every: true,
	text: "Asking again with the same Owner restarts the TTL.",
	run: func(s *scene) {
		r := s.brief(s.request())
		first := time.Now()
		s.a.hold(r)
		s.sleep(r.TTL * 6 / 10)
		since := time.Now()
		s.a.within(first, r.TTL).mustAcquire(r, "the same Owner asked again is the same hold")
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "asking again restarts the TTL")
	},
}, {name: "again/late", every: true,
	text: "An attempt that arrives late, after a renewal for longer, shortens nothing.",
	run: func(s *scene) {
		r := s.lengthened(s.request())
		s.a.mustAcquire(s.brief(r), "the same Owner asked again is the same hold")
		s.outlives(r, "an attempt for less than is left does not shorten a hold")
	},
}}

var releaseChecks = []promise{{name: "release/only-by-owner", every: true,
	text: "Releasing for an Owner that does not hold is ErrLost and frees nothing.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.b.free(stranger(r), driver.ErrLost, "only the owner releases")
		s.a.free(stranger(r), driver.ErrLost, "only the owner releases, also on the holder's connection")
		s.b.refused(s.rival(r), "only the owner releases: the hold of another was ended")
		s.a.renew(r.Hold, nil, "only the owner releases: the hold of another was ended")
	},
}, {name: "release/twice", every: true,
	text: "A second Release is ErrLost.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.free(r.Hold, driver.ErrLost, "a released hold can't be released again")
	},
}, {name: "release/never-held", every: true,
	text: "Releasing what was never held is ErrLost.",
	run: func(s *scene) {
		r := s.request()
		s.a.free(r.Hold, driver.ErrLost, "what was never held can't be released")
		s.b.mustAcquire(s.rival(r), "Release of nothing leaves the lock free")
	},
}, {name: "release/expired", every: true,
	text: "Releasing a hold that has ended is ErrLost.",
	run: func(s *scene) {
		r, c := s.expired()
		c.free(r.Hold, driver.ErrLost, "a hold that has ended can't be released")
		s.b.mustAcquire(s.rival(r), "the lock of a hold that has ended is free")
	},
}, {name: "release/leaves-successor", every: true,
	text: "Releasing a hold that has ended leaves its successor alone.",
	run: func(s *scene) {
		r, c := s.expired()
		next := s.rival(r)
		s.b.mustAcquire(next, "the lock of a hold that has ended is free")
		c.free(r.Hold, driver.ErrLost, "a hold that has a successor can't be released")
		s.b.renew(next.Hold, nil, "a late Release leaves the successor alone")
		s.b.refused(s.rival(r), "a late Release leaves the successor alone")
	},
}, {name: "release/force", every: true,
	text: "Any connection can end a hold that Inspect has shown it.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.b.free(s.b.seen(r), nil, "what Inspect reports is enough to release")
		s.b.mustAcquire(s.rival(r), "a lock that was released by force is free")
		s.a.renew(r.Hold, driver.ErrLost, "a hold that was released by force is lost")
	},
}, {name: "release/force-spares-successor", every: true,
	text: "Releasing a hold that was inspected does not release its successor.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		seen := s.b.seen(r)
		s.a.free(r.Hold, nil, "the holder releases")
		next := s.rival(r)
		s.a.mustAcquire(next, "a released lock is free")
		s.b.free(seen, driver.ErrLost, "a force unlock can't hit a successor")
		s.a.renew(next.Hold, nil, "a force unlock can't hit a successor")
	},
}}
