package drivertest

import (
	"time"

	"github.com/distlock/distlock/driver"
)

var ttlChecks = []promise{{
	name:  "ttl/granted",
	text:  "A grant tells a TTL of at least what was asked for.",
	every: true,
	needs: need{ownTTL: true},
	run: func(s *scene) {
		r := s.request()
		r.TTL = s.TTL + 123456*time.Nanosecond
		s.a.take(r, "a free lock is granted") // which looks at every grant's TTL
	},
}, {
	name:  "ttl/expires",
	text:  "A hold that nobody renews ends, and the lock is granted to the next.",
	every: true,
	run: func(s *scene) {
		r := s.brief(s.request())
		s.a.take(r, "a free lock is granted")
		s.a.fallSilent()
		s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
	},
}, {
	name:  "ttl/not-early",
	text:  "A hold lives for at least its TTL, counted from before the call.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		// Not a multiple of anything that a coordinator may count in.
		r.TTL = s.TTL + s.TTL/3 + 9900*time.Microsecond
		since := time.Now()
		g := s.a.take(r, "a free lock is granted")
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
}, {
	name:  "ttl/longest",
	text:  "A hold of the greatest TTL is as any: no sum with it overflows.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		r.TTL = s.caps.Longest()
		s.a.take(r, "a free lock is granted for the greatest TTL")
		rival := s.rival(r)
		s.b.refused(rival, "a hold of the greatest TTL excludes others")
		s.a.renew(r.Hold, nil, "a hold of the greatest TTL is renewed")
		s.b.refused(rival, "a renewed hold of the greatest TTL excludes others")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(rival, "a released lock is free")
	},
}, {
	name:  "ttl/retry",
	text:  "A refusal tells when the holder's TTL ends, if it tells anything.",
	every: true,
	needs: need{ownTTL: true},
	run: func(s *scene) {
		r := s.request()
		since := time.Now()
		s.a.take(r, "a free lock is granted")
		retry := s.b.refused(s.rival(r), "a lock has one holder at a time").Retry
		if retry == 0 || s.over() {
			return
		}
		s.want(retry <= r.TTL+r.TTL/10, "HeldError.Retry is the end of the holder's TTL: got %v with a TTL of %v", retry, r.TTL)
		s.want(retry >= r.TTL-r.TTL/10-time.Since(since), "HeldError.Retry is the end of the holder's TTL: got %v with a TTL of %v", retry, r.TTL)
	},
}, {
	name:  "ttl/retry-is-enough",
	text:  "After the time that a refusal tells the lock is granted.",
	needs: need{ownTTL: true},
	run: func(s *scene) {
		r := s.brief(s.request())
		since := time.Now()
		s.a.take(r, "a free lock is granted")
		rival := s.rival(r)
		retry := s.b.shutOut(rival, since, r.TTL, "a lock has one holder at a time").Retry
		s.want(retry >= 0, "HeldError.Retry is not negative: got %v", retry)
		s.sleep(retry)
		s.b.eventually(rival, 0, "HeldError.Retry is when time alone lets the request in")
	},
}}

// fallSilent lets the connection do as a process that died: it renews nothing, and a
// session ends.
func (c *conn) fallSilent() {
	if c.caps.Session {
		c.close()
	}
}

// expired makes a hold that has ended and, unless it was a session's, that nobody has looked at
// since: its twin, taken later for as long, was seen to end. It returns a connection that can
// still speak for its owner.
func (s *scene) expired() (driver.Request, *conn) {
	r, twin := s.brief(s.request()), s.brief(s.requestFor("twin"))
	since := time.Now()
	s.a.take(r, "a free lock is granted")
	s.a.within(since, s.TTL).take(twin, "a free lock is granted")
	s.a.fallSilent()
	s.b.eventually(s.rival(twin), s.TTL, "a hold without renewal ends with its TTL")
	if !s.caps.Session {
		return r, s.a
	}
	// A session may be several connections, which end one by one.
	next := s.rival(r)
	s.b.eventually(next, s.TTL, "the end of a session ends its holds")
	s.b.free(next.Hold, nil, "the holder releases")
	return r, s.b
}
