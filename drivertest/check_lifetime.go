package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

var ttlChecks = []promise{{name: "ttl/granted", every: true, needs: need{ownTTL: true},
	text: "A grant's TTL is at least the requested one.",
	run: func(s *scene) {
		r := s.request()
		r.TTL = s.TTL + 123456*time.Nanosecond
		s.a.mustAcquire(r, "a free lock is granted") // which looks at every grant's TTL
	},
}, {name: "ttl/expires", every: true,
	text: "A hold that is not renewed ends, and the lock is granted to the next.",
	run: func(s *scene) {
		r := s.a.hold(s.brief(s.request()))
		s.a.fallSilent()
		s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
	},
}, {name: "ttl/not-early", every: true,
	text: "A hold lives for at least its TTL, counted from before the call.",
	run: func(s *scene) {
		r := s.request()
		// Not a multiple of anything that a coordinator may count in.
		r.TTL = s.TTL + s.TTL/3 + 9900*time.Microsecond
		since := time.Now()
		g := s.a.mustAcquire(r, "a free lock is granted")
		s.sleep(r.TTL * 6 / 10)
		rival := s.rival(r)
		if s.caps.Session {
			s.b.shutOut(rival, since, g.TTL, "a hold lives for its TTL")
			return
		}
		s.b.eventually(rival, r.TTL, "a hold without renewal ends with its TTL")
		lived := time.Since(since)
		s.want(lived >= g.TTL || s.over(), "a hold lives for its TTL: %v asked, %v granted, but the next was let in after %v", r.TTL, g.TTL, lived)
	},
}, {name: "ttl/longest", every: true,
	text: "A hold of the greatest TTL is like any other: no sum with it overflows.",
	run: func(s *scene) {
		r := s.request()
		r.TTL = s.caps.Longest()
		s.a.mustAcquire(r, "a free lock is granted for the greatest TTL")
		rival := s.rival(r)
		s.b.refused(rival, "a hold of the greatest TTL excludes others")
		s.a.renew(r.Hold, nil, "a hold of the greatest TTL is renewed")
		s.b.refused(rival, "a renewed hold of the greatest TTL excludes others")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(rival, "a released lock is free")
	},
}, {name: "ttl/retry", every: true, needs: need{ownTTL: true},
	text: "A refusal reports when the holder's TTL ends, or nothing.",
	run: func(s *scene) {
		r := s.request()
		since := time.Now()
		s.a.hold(r)
		retry := s.b.refused(s.rival(r), "a lock has one holder at a time").Retry
		if retry == 0 || s.over() {
			return
		}
		s.want(retry <= r.TTL+r.TTL/10, "HeldError.Retry is the end of the holder's TTL: got %v with a TTL of %v", retry, r.TTL)
		s.want(retry >= r.TTL-r.TTL/10-time.Since(since), "HeldError.Retry is the end of the holder's TTL: got %v with a TTL of %v", retry, r.TTL)
	},
}, {name: "ttl/retry-is-enough", needs: need{ownTTL: true},
	text: "After the time that a refusal reports, the lock is granted.",
	run: func(s *scene) {
		r := s.brief(s.request())
		since := time.Now()
		s.a.hold(r)
		rival := s.rival(r)
		retry := s.b.shutOut(rival, since, r.TTL, "a lock has one holder at a time").Retry
		s.want(retry >= 0, "HeldError.Retry is not negative: got %v", retry)
		s.sleep(retry)
		s.b.eventually(rival, 0, "HeldError.Retry is when time alone lets the request in")
	},
}, {name: "ttl/newcomer", every: true, needs: need{observed: true},
	text: "Where holds end only for those who watch them, a connection that has just come waits for a whole TTL, and is told for how long.",
	run: func(s *scene) {
		r := s.a.hold(s.brief(s.request()))
		s.sleep(r.TTL * 6 / 10)
		came, rival := time.Now(), s.rival(r)
		retry := s.b.refused(rival, "a connection that has just come has not seen a hold end").Retry
		s.want(retry > 0 || s.over(), "HeldError.Retry says how long the hold has to be watched")
		s.b.eventually(rival, r.TTL, "a hold without renewal ends with its TTL for those who watch it")
		watched := time.Since(came)
		s.want(watched >= r.TTL || s.caps.Late > 0 || s.over(), "a hold ends for those who have watched it for its TTL, %v: it was watched for %v", r.TTL, watched)
	},
}, {name: "ttl/late", every: true, needs: need{late: true},
	text: "A hold without renewal ends for each connection that has just come, Caps.Late after its TTL.",
	run: func(s *scene) {
		r, since := s.brief(s.request()), time.Now()
		s.a.hold(r)
		s.a.fallSilent()
		for granted := false; !granted && !s.over(); s.sleep(20 * s.pause()) {
			came := s.open("C")
			_, granted = tryOnce(came, s.rival(r))
			held := time.Since(since)
			s.want(!granted || held >= r.TTL, "a hold lives for its TTL, %v: it was replaced after %v", r.TTL, held)
			s.want(granted || held < r.TTL+s.caps.Late+s.Slack, "a hold ends %v after its TTL, %v: a connection that has just come is refused after %v", s.caps.Late, r.TTL, held)
			if !granted {
				came.close()
			}
		}
	},
}}

var renewChecks = []promise{{name: "renew/extends", every: true,
	text: "A renewed hold lives for its TTL from the renewal on.",
	run: func(s *scene) {
		r := s.brief(s.request())
		since := time.Now()
		s.a.hold(r)
		since = s.renewLate(r, since)
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a renewed hold lives for its TTL from the renewal on")
	},
}, {name: "renew/late", every: true,
	text: "A renewal that arrives late, after one for longer, shortens nothing.",
	run: func(s *scene) {
		r := s.lengthened(s.request())
		s.a.renew(s.brief(r).Hold, nil, "a renewal arrives late")
		s.outlives(r, "a renewal for less than is left does not shorten a hold")
	},
}, {name: "renew/never-revives", every: true,
	text: "Renewing a hold that has ended is ErrLost and does not revive it.",
	run: func(s *scene) {
		r, c := s.expired()
		c.renew(r.Hold, driver.ErrLost, "a hold that has ended can't be renewed")
		s.b.mustAcquire(s.rival(r), "a late Renew does not revive a hold that has ended")
	},
}, {name: "renew/leaves-successor", every: true,
	text: "Renewing a hold that has ended leaves the lock to its successor.",
	run: func(s *scene) {
		r, c := s.expired()
		next := s.rival(r)
		s.b.mustAcquire(next, "the lock of a hold that has ended is free")
		c.renew(r.Hold, driver.ErrLost, "a hold that has a successor can't be renewed")
		s.b.renew(next.Hold, nil, "a late Renew leaves the successor alone")
		s.b.refused(s.rival(r), "a late Renew leaves the successor alone")
	},
}, {name: "renew/only-by-owner", every: true,
	text: "Renewing for an Owner that does not hold is ErrLost and does not prolong the hold.",
	run: func(s *scene) {
		r := s.a.hold(s.brief(s.request()))
		other := stranger(r)
		other.TTL = s.long()
		s.b.renew(other, driver.ErrLost, "only the owner renews")
		s.a.renew(other, driver.ErrLost, "only the owner renews, also on the holder's connection")
		s.a.fallSilent()
		s.b.eventually(s.rival(r), s.TTL, "only the owner renews: the hold of another was prolonged")
	},
}, {name: "renew/never-held", every: true,
	text: "Renewing what was never held is ErrLost and takes nothing.",
	run: func(s *scene) {
		r := s.request()
		s.a.renew(r.Hold, driver.ErrLost, "what was never held can't be renewed")
		s.b.mustAcquire(s.rival(r), "Renew does not acquire")
	},
}, {name: "renew/after-release", every: true,
	text: "Renewing a released hold is ErrLost and does not revive it.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.renew(r.Hold, driver.ErrLost, "a released hold can't be renewed")
		s.b.mustAcquire(s.rival(r), "a late Renew does not revive a released hold")
	},
}, {name: "renew/batch", every: true,
	text: "A batch is answered hold by hold, in its order.",
	run: func(s *scene) {
		live, lives := s.requestFor("live"), s.requestFor("lives")
		gone, taken := s.requestFor("gone"), s.requestFor("taken")
		for _, r := range []driver.Request{live, lives, gone} {
			s.a.hold(r)
		}
		s.a.free(gone.Hold, nil, "the holder releases")
		s.b.hold(taken)
		never := s.requestFor("never")
		holds := []driver.Hold{live.Hold, gone.Hold, stranger(taken), lives.Hold, never.Hold, stranger(live)}
		want := []error{nil, driver.ErrLost, driver.ErrLost, nil, driver.ErrLost, driver.ErrLost}
		for i, err := range s.a.renewAll(holds, "a mixed batch") {
			s.want(errors.Is(err, want[i]), "a batch is answered in its order: hold %d of %d got %w; want %s", i+1, len(holds), answer(err), nameOf(want[i]))
		}
	},
}, {name: "renew/empty-batch",
	text: "A batch of nothing has no answers.",
	run: func(s *scene) {
		s.want(len(s.a.renewAll(nil, "no holds")) == 0, "a batch of nothing has no answers")
		s.want(len(s.a.renewAll([]driver.Hold{}, "no holds")) == 0, "a batch of nothing has no answers")
	},
}, {name: "renew/big-batch",
	text: "A batch of all that one connection holds renews them all.",
	run: func(s *scene) {
		var holds []driver.Hold
		for i := range s.atOnce(200) {
			r := s.a.hold(s.requestFor(fmt.Sprint(i)))
			holds = append(holds, r.Hold)
		}
		for i, err := range s.a.renewAll(holds, "many holds") {
			s.want(err == nil, "a big batch renews them all: hold %d got %w", i+1, answer(err))
		}
	},
}}

var fixedChecks = []promise{{name: "fixed/as-any", every: true,
	text: "A fixed hold excludes others and is released like any other.",
	run: func(s *scene) {
		r := fixed(s.request())
		first := s.a.mustAcquire(r, "a free lock is granted")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.rises(first, s.a.mustAcquire(r, "the same Owner asked again is the same hold"), "the same Owner asked again")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.rival(r), "a released lock is free")
	},
}, {name: "fixed/renewed", every: true,
	text: "A fixed hold that is renewed all the same lives for its TTL from then on.",
	run: func(s *scene) {
		r := fixed(s.brief(s.request()))
		since := time.Now()
		s.a.hold(r)
		since = s.renewLate(r, since)
		s.sleep(r.TTL * 6 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a renewed hold lives for its TTL from the renewal on")
	},
}, {name: "fixed/not-early", every: true, needs: need{ownTTL: true},
	text: "A fixed hold has a life of its own, which is no shorter than its TTL.",
	run: func(s *scene) {
		earlier := time.Now()
		s.a.hold(s.brief(s.requestFor("earlier")))
		s.sleep(s.TTL / 3)
		r := fixed(s.brief(s.request()))
		since := time.Now()
		g := s.a.within(earlier, s.TTL).mustAcquire(r, "a free lock is granted")
		s.want(g.TTL >= r.TTL || s.over(), "a fixed hold does not share what is left of a session: got a grant of %v, asked for %v", g.TTL, r.TTL)
		s.sleep(r.TTL * 8 / 10)
		s.b.shutOut(s.rival(r), since, r.TTL, "a fixed hold lives for its TTL")
	},
}, {name: "fixed/ends", every: true, needs: need{ownTTL: true},
	text: "A fixed hold ends after its TTL though another one of the same connection is renewed.",
	run: func(s *scene) {
		kept, r := s.brief(s.requestFor("kept")), fixed(s.brief(s.request()))
		since := time.Now()
		s.a.hold(kept)
		s.a.within(since, s.TTL).mustAcquire(r, "a free lock is granted")
		s.whileRenewed(kept, func() {
			s.b.eventually(s.rival(r), s.TTL, "a fixed hold ends with its TTL, whatever becomes of others")
		})
	},
}}
