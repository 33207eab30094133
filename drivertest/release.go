package drivertest

import "github.com/distlock/distlock/driver"

var releaseChecks = []promise{{
	name:  "release/only-by-owner",
	text:  "Releasing for somebody who does not hold is ErrLost and frees nothing.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.b.free(stranger(r), driver.ErrLost, "only the owner releases")
		s.a.free(stranger(r), driver.ErrLost, "only the owner releases, also on the holder's connection")
		s.b.refused(s.rival(r), "only the owner releases: the hold of another was ended")
		s.a.renew(r.Hold, nil, "only the owner releases: the hold of another was ended")
	},
}, {
	name:  "release/twice",
	text:  "A second Release is ErrLost.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.free(r.Hold, driver.ErrLost, "a released hold can't be released again")
	},
}, {
	name:  "release/never-held",
	text:  "Releasing what was never held is ErrLost.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.free(r.Hold, driver.ErrLost, "what was never held can't be released")
		s.b.take(r, "Release of nothing leaves the lock free")
	},
}, {
	name:  "release/expired",
	text:  "Releasing a hold that has ended is ErrLost.",
	every: true,
	run: func(s *scene) {
		r, c := s.expired()
		c.free(r.Hold, driver.ErrLost, "a hold that has ended can't be released")
		s.b.take(s.rival(r), "the lock of a hold that has ended is free")
	},
}, {
	name:  "release/leaves-successor",
	text:  "Releasing a hold that has ended leaves its successor alone.",
	every: true,
	run: func(s *scene) {
		r, c := s.expired()
		next := s.rival(r)
		s.b.take(next, "the lock of a hold that has ended is free")
		c.free(r.Hold, driver.ErrLost, "a hold that has a successor can't be released")
		s.b.renew(next.Hold, nil, "a late Release leaves the successor alone")
		s.b.refused(s.rival(r), "a late Release leaves the successor alone")
	},
}, {
	name:  "release/force",
	text:  "Any connection can end a hold that Inspect has told it of.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.b.free(s.b.seen(r), nil, "what Inspect tells is enough to release")
		s.b.take(s.rival(r), "a lock that was released by force is free")
		s.a.renew(r.Hold, driver.ErrLost, "a hold that was released by force is lost")
	},
}, {
	name:  "release/force-spares-successor",
	text:  "A hold that was inspected can be released, its successor can't by that.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		seen := s.b.seen(r)
		s.a.free(r.Hold, nil, "the holder releases")
		next := s.rival(r)
		s.a.take(next, "a released lock is free")
		s.b.free(seen, driver.ErrLost, "a force unlock can't hit a successor")
		s.a.renew(next.Hold, nil, "a force unlock can't hit a successor")
	},
}}

// seen is the one hold on r's lock, as Inspect tells it.
func (c *conn) seen(r driver.Request) driver.Hold {
	info := c.inspect(r.Name)
	if len(info.Holders) != 1 {
		c.want(c.over(), "Inspect tells who holds: got %d holders, want 1", len(info.Holders))
		return r.Hold
	}
	return driver.Hold{Name: info.Name, Owner: info.Holders[0].Owner, Mode: info.Holders[0].Mode}
}
