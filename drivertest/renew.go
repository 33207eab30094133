package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

var renewChecks = []promise{{
	name:  "renew/extends",
	text:  "A renewed hold lives for its TTL from the renewal on.",
	every: true,
	run: func(s *scene) {
		r := s.brief(s.request())
		since := time.Now()
		s.a.take(r, "a free lock is granted")
		since = s.renewLate(r, since)
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a renewed hold lives for its TTL from the renewal on")
	},
}, {
	name:  "renew/late",
	text:  "A renewal that arrives late, after one for longer, shortens nothing.",
	every: true,
	run: func(s *scene) {
		r := s.lengthened(s.request())
		s.a.renew(s.brief(r).Hold, nil, "a renewal arrives late")
		s.outlives(r, "a renewal for less than is left does not shorten a hold")
	},
}, {
	name:  "renew/shorten",
	text:  "A renewal with Shorten sets the remaining life to the TTL, also if more was left.",
	every: true,
	needs: need{ownTTL: true},
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		last := s.brief(r).Hold
		last.Shorten = true
		s.a.renew(last, nil, "the holder lets the lock end by itself")
		s.b.eventually(s.rival(r), s.TTL, "Renew with Shorten sets the remaining life to the TTL, also to less")
	},
}, {
	name:  "renew/never-revives",
	text:  "Renewing a hold that has ended is ErrLost and does not revive it.",
	every: true,
	run: func(s *scene) {
		r, c := s.expired()
		c.renew(r.Hold, driver.ErrLost, "a hold that has ended can't be renewed")
		s.b.take(s.rival(r), "a late Renew does not revive a hold that has ended")
	},
}, {
	name:  "renew/leaves-successor",
	text:  "Renewing a hold that has ended leaves the lock to its successor.",
	every: true,
	run: func(s *scene) {
		r, c := s.expired()
		next := s.rival(r)
		s.b.take(next, "the lock of a hold that has ended is free")
		c.renew(r.Hold, driver.ErrLost, "a hold that has a successor can't be renewed")
		s.b.renew(next.Hold, nil, "a late Renew leaves the successor alone")
		s.b.refused(s.rival(r), "a late Renew leaves the successor alone")
	},
}, {
	name:  "renew/only-by-owner",
	text:  "Renewing for somebody who does not hold is ErrLost and does not prolong the hold.",
	every: true,
	run: func(s *scene) {
		r := s.brief(s.request())
		s.a.take(r, "a free lock is granted")
		other := stranger(r)
		other.TTL = s.long()
		s.b.renew(other, driver.ErrLost, "only the owner renews")
		s.a.renew(other, driver.ErrLost, "only the owner renews, also on the holder's connection")
		s.a.fallSilent()
		s.b.eventually(s.rival(r), s.TTL, "only the owner renews: the hold of another was prolonged")
	},
}, {
	name:  "renew/never-held",
	text:  "Renewing what was never held is ErrLost and takes nothing.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.renew(r.Hold, driver.ErrLost, "what was never held can't be renewed")
		s.b.take(s.rival(r), "Renew does not acquire")
	},
}, {
	name:  "renew/after-release",
	text:  "Renewing a released hold is ErrLost and does not revive it.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.renew(r.Hold, driver.ErrLost, "a released hold can't be renewed")
		s.b.take(s.rival(r), "a late Renew does not revive a released hold")
	},
}, {
	name:  "renew/batch",
	text:  "A batch is answered hold by hold, in its order.",
	every: true,
	run: func(s *scene) {
		live, lives := s.requestFor("live"), s.requestFor("lives")
		gone, taken := s.requestFor("gone"), s.requestFor("taken")
		for _, r := range []driver.Request{live, lives, gone} {
			s.a.take(r, "a free lock is granted")
		}
		s.a.free(gone.Hold, nil, "the holder releases")
		s.b.take(taken, "a free lock is granted")
		never := s.requestFor("never")
		holds := []driver.Hold{live.Hold, gone.Hold, stranger(taken), lives.Hold, never.Hold, stranger(live)}
		want := []error{nil, driver.ErrLost, driver.ErrLost, nil, driver.ErrLost, driver.ErrLost}
		for i, err := range s.a.renewAll(holds, "a mixed batch") {
			s.want(errors.Is(err, want[i]), "a batch is answered in its order: hold %d of %d got %s; want %s", i+1, len(holds), answer(err), nameOf(want[i]))
		}
	},
}, {
	name: "renew/empty-batch",
	text: "A batch of nothing has no answers.",
	run: func(s *scene) {
		s.want(len(s.a.renewAll(nil, "no holds")) == 0, "a batch of nothing has no answers")
		s.want(len(s.a.renewAll([]driver.Hold{}, "no holds")) == 0, "a batch of nothing has no answers")
	},
}, {
	name: "renew/big-batch",
	text: "A batch of all that one connection holds renews them all.",
	run: func(s *scene) {
		var holds []driver.Hold
		for i := range s.atOnce(200) {
			r := s.requestFor(fmt.Sprint(i))
			s.a.take(r, "a free lock is granted")
			holds = append(holds, r.Hold)
		}
		for i, err := range s.a.renewAll(holds, "many holds") {
			s.want(err == nil, "a big batch renews them all: hold %d got %s", i+1, answer(err))
		}
	},
}}

// lengthened takes r's lock for the short TTL and renews it for the long one. Where a session
// can't give a hold a longer life, it is taken for the long one, by another owner.
func (s *scene) lengthened(r driver.Request) driver.Request {
	c := s.a.within(time.Now(), s.TTL)
	c.take(s.brief(r), "a free lock is granted")
	for _, err := range c.renewAll([]driver.Hold{r.Hold}, "the holder renews for longer") {
		if s.caps.Session && errors.Is(err, driver.ErrUnsupported) {
			c.free(r.Hold, nil, "the holder releases")
			r.Owner = driver.NewOwner()
			s.a.take(r, "a released lock is free")
			continue
		}
		c.want(err == nil, "the holder renews for longer: Renew on connection A answered %s; want success", answer(err))
	}
	return r
}

// outlives waits until a hold of the short TTL would have ended, and wants that of r to live.
func (s *scene) outlives(r driver.Request, rule string) {
	s.sleep(s.TTL * 14 / 10)
	s.b.refused(s.rival(r), rule)
	s.a.renew(r.Hold, nil, rule)
}

// renewLate renews, when more than half of the TTL has passed, what was anchored at
// since, and returns an instant before that. If the machine was too slow to be in
// time, the scene is over.
func (s *scene) renewLate(r driver.Request, since time.Time) time.Time {
	s.sleep(r.TTL * 6 / 10)
	now := time.Now()
	s.a.within(since, r.TTL).renew(r.Hold, nil, "a live hold is renewed")
	return now
}
