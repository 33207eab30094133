package drivertest

import (
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

var fixedChecks = []promise{{
	name:  "fixed/as-any",
	text:  "A hold that nobody is going to renew excludes others, and is released, as any other.",
	every: true,
	run: func(s *scene) {
		r := fixed(s.request())
		first := s.a.take(r, "a free lock is granted")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.rises(first, s.a.take(r, "the same Owner asked again is the same hold"), "the same Owner asked again")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(s.rival(r), "a released lock is free")
	},
}, {
	name:  "fixed/renewed",
	text:  "A fixed hold that is renewed all the same lives for its TTL from then on.",
	every: true,
	run: func(s *scene) {
		r := fixed(s.brief(s.request()))
		since := time.Now()
		s.a.take(r, "a free lock is granted")
		since = s.renewLate(r, since)
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a renewed hold lives for its TTL from the renewal on")
	},
}, {
	name:  "fixed/not-early",
	text:  "A fixed hold has a life of its own, which is no shorter than its TTL.",
	every: true,
	needs: need{fixed: true},
	run: func(s *scene) {
		earlier := time.Now()
		s.a.take(s.brief(s.requestFor("earlier")), "a free lock is granted")
		s.sleep(s.TTL / 3)
		r := fixed(s.brief(s.request()))
		since := time.Now()
		g := s.a.within(earlier, s.TTL).take(r, "a free lock is granted")
		s.want(g.TTL >= r.TTL || s.over(), "a fixed hold does not share what is left of a session: got a grant of %v, asked for %v", g.TTL, r.TTL)
		s.sleep(r.TTL * 8 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a fixed hold lives for its TTL")
	},
}, {
	name:  "fixed/ends",
	text:  "A fixed hold ends after its TTL though another one of the same connection is renewed.",
	every: true,
	needs: need{fixed: true},
	run: func(s *scene) {
		kept, r := s.brief(s.requestFor("kept")), fixed(s.brief(s.request()))
		since := time.Now()
		s.a.take(kept, "a free lock is granted")
		s.a.within(since, s.TTL).take(r, "a free lock is granted")
		s.whileRenewed(kept, func() {
			s.b.eventually(s.rival(r), s.TTL, "a fixed hold ends with its TTL, whatever becomes of the session")
		})
	},
}}

// fixed is r as one that nobody is going to renew.
func fixed(r driver.Request) driver.Request {
	r.Fixed = true
	return r
}

// whileRenewed runs f while A renews a hold, which must be alive at the end: else the
// machine was too slow to tell.
func (s *scene) whileRenewed(kept driver.Request, f func()) {
	renew := func() {
		for _, err := range s.a.renewAll([]driver.Hold{kept.Hold}, "the holder renews") {
			if errors.Is(err, driver.ErrLost) {
				s.fail(errSlow)
			}
		}
	}
	stop := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for {
			renew()
			select {
			case <-stop:
				return
			case <-time.After(s.TTL / 4):
			}
		}
	})
	f()
	close(stop)
	renewing.Wait()
	renew()
}
