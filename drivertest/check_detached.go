package drivertest

import (
	"time"

	"github.com/distlock/distlock/driver"
)

var detachedChecks = []promise{{name: "detached/taken-over", every: true, needs: detached,
	text: "A hold whose connection was closed is renewed, acquired again and released by its Owner through another one.",
	run: func(s *scene) {
		r := s.request()
		first := s.a.mustAcquire(r, "a free lock is granted")
		s.a.close()
		s.b.renew(r.Hold, nil, "any connection renews a hold by its Owner")
		s.b.refused(s.rival(r), "a hold that another connection has renewed excludes others")
		again := s.b.mustAcquire(r, "any connection acquires again for an Owner that holds")
		s.rises(first, again, "acquired again through another connection")
		c := s.open("C")
		c.refused(s.rival(r), "a hold that another connection has acquired again excludes others")
		c.free(r.Hold, nil, "any connection releases a hold by its Owner")
		s.b.renew(r.Hold, driver.ErrLost, "a hold that another connection has released is lost")
		s.b.mustAcquire(s.rival(r), "a released lock is free")
	},
}, {name: "detached/shared", every: true, needs: detached,
	text: "Two open connections renew, acquire again and release for one Owner in turn.",
	run: func(s *scene) {
		r := s.request()
		last := s.a.mustAcquire(r, "a free lock is granted")
		for i := 1; i < 5; i++ {
			c := s.conn(i)
			c.renew(r.Hold, nil, "any connection renews a hold by its Owner")
			again := c.mustAcquire(r, "any connection acquires again for an Owner that holds")
			s.rises(last, again, "acquired again through another connection")
			c.refused(s.rival(r), "an Owner that asked again holds on")
			last = again
		}
		s.b.free(r.Hold, nil, "any connection releases a hold by its Owner")
		s.a.free(r.Hold, driver.ErrLost, "a hold that another connection has released is lost")
		s.a.mustAcquire(s.rival(r), "a released lock is free")
	},
}, {name: "detached/renewed", every: true, needs: detached,
	text: "A renewal through another connection makes the hold live for its TTL, also if that connection is closed then.",
	run: func(s *scene) {
		r := s.brief(s.request())
		since := time.Now()
		s.a.hold(r)
		s.a.close()
		s.sleep(r.TTL * 6 / 10)
		renewed := time.Now()
		s.b.within(since, r.TTL).renew(r.Hold, nil, "any connection renews a hold by its Owner")
		s.b.close()
		s.sleep(r.TTL * 6 / 10)
		c := s.open("C")
		c.shutOut(s.rival(r), renewed, r.TTL, "a renewed hold lives for its TTL from the renewal on")
		c.eventually(s.rival(r), r.TTL, "a hold without renewal ends with its TTL")
	},
}, {name: "detached/ends", every: true, needs: detached,
	text: "A hold that another connection has renewed ends after its TTL, though that connection renews others.",
	run: func(s *scene) {
		kept, r := s.brief(s.requestFor("kept")), s.brief(s.request())
		since := time.Now()
		s.a.hold(kept)
		s.b.hold(r)
		s.a.within(since, s.TTL).renew(r.Hold, nil, "any connection renews a hold by its Owner")
		s.whileRenewed(kept, func() {
			s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
		})
	},
}, {name: "detached/place", every: true, needs: need{detached: true, queue: true},
	text: "A waiter keeps its place in the queue when it goes on through another connection.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		waiters := s.queueUp(r, s.a, s.b)
		s.a.close()
		s.b.refused(queued(waiters[0]), "a lock has one holder at a time")
		turn := time.Now()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.inTurn(turn).refused(queued(waiters[1]), "an Owner that asks through another connection does not go to the end of the queue")
		s.b.inTurn(turn).mustAcquire(queued(waiters[0]), "the first in the queue gets the lock")
	},
}}
