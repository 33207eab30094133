package drivertest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var exclusionChecks = []promise{{
	name:  "exclusion/two-connections",
	text:  "What one connection holds is refused to another.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.b.refused(s.rival(r), "a refusal does not wear off")
	},
}, {
	name:  "exclusion/one-connection",
	text:  "Two owners exclude each other on one connection too.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.refused(s.rival(r), "holding is by owner, not by connection")
	},
}, {
	name:  "exclusion/free-after-release",
	text:  "A released lock is granted to the next at once.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(s.rival(r), "a released lock is free")
	},
}, {
	name:  "exclusion/refusal-takes-nothing",
	text:  "A refused attempt without Queue leaves nothing behind.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		refused := s.rival(r)
		s.a.take(r, "a free lock is granted")
		s.b.refused(refused, "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.free(refused.Hold, driver.ErrLost, "a refused attempt has nothing to release")
		s.a.take(s.rival(r), "a refused attempt does not stand in the way later")
	},
}, {
	name:  "exclusion/race",
	text:  "Of many attempts at one moment exactly one is granted.",
	every: true,
	run: func(s *scene) {
		for range 12 {
			race(s)
		}
	},
}, {
	name:  "exclusion/counter",
	text:  "What is done under the lock is never done by two at once.",
	every: true,
	run:   countUnderLock,
}}

// race lets 16 owners on each of two connections try at one moment. Nobody may win while
// a backend of several members gives back what the race before left there, so a race that
// nobody won is run again, twice at most.
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

// raceOnce answers how many won. The winner releases where it was granted: what is still
// under way for it there could come after a release on another connection.
func raceOnce(s *scene) int {
	first := s.request()
	var won atomic.Pointer[func()]
	var winners atomic.Int32
	start, begun := make(chan struct{}), time.Now()
	time.AfterFunc(time.Millisecond, func() { close(start) })
	together(32, func(i int) {
		c, r := s.a, s.rival(first)
		if i%2 == 1 {
			c = s.b
		}
		<-start
		g, err := c.acquire(r)
		if err == nil {
			release := func() { c.free(r.Hold, nil, "the winner releases") }
			won.Store(&release)
			winners.Add(1)
		} else {
			c.heldError(g, err, "an attempt is granted or refused")
		}
	})
	if winners.Load() == 0 && time.Since(begun) > s.TTL/2 {
		s.fail(errSlow) // a grant may have come too late to be one
	}
	if release := won.Load(); release != nil {
		(*release)()
	}
	return int(winners.Load())
}

// countUnderLock lets 4 owners on each connection add one to a number in two steps
// that only a lock makes safe. It goes on for 240 turns or a second and a half.
func countUnderLock(s *scene) {
	const turns = 240
	var number, last atomic.Uint64
	until := time.Now().Add(1500 * time.Millisecond)
	together(8, func(i int) {
		c := s.a
		if i%2 == 1 {
			c = s.b
		}
		for time.Now().Before(until) && number.Load() < turns && !s.over() {
			r := s.rival(s.request())
			if g, ok := turn(c, r); ok {
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

func turn(c *conn, r driver.Request) (driver.Grant, bool) {
	g, err := c.acquire(r)
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) {
			c.heldError(g, err, "an attempt is granted or refused")
		}
		c.sleep(c.pause())
	}
	return g, err == nil
}
