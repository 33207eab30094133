package drivertest

import (
	"errors"

	"github.com/distlock/distlock/driver"
)

var kindChecks = []promise{{
	name:  "kinds/never-independent",
	text:  "Two kinds of lock under one name are not both granted.",
	every: true,
	run: func(s *scene) {
		for _, other := range s.modes() {
			if other.SameKind(s.mode) {
				continue
			}
			r := s.requestFor("as " + other.String())
			s.a.take(r, "a free lock is granted")
			s.b.excluded(s.requestIn(other, "as "+other.String()))
			s.a.renew(r.Hold, nil, "an attempt as another kind leaves the holder alone")
		}
	},
}, {
	name:  "kinds/free-again",
	text:  "An attempt as another kind leaves nothing behind.",
	every: true,
	run: func(s *scene) {
		for _, other := range s.modes() {
			if other.SameKind(s.mode) {
				continue
			}
			r := s.requestFor("as " + other.String())
			s.a.take(r, "a free lock is granted")
			s.b.excluded(s.requestIn(other, "as "+other.String()))
			s.a.free(r.Hold, nil, "the holder releases")
			s.b.take(s.rival(r), "an attempt as another kind does not stand in the way later")
		}
	},
}}

// excluded must be refused, as held or as invalid.
func (c *conn) excluded(r driver.Request) {
	if c.over() {
		return
	}
	_, err := c.acquire(r)
	c.want(errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrInvalid),
		"kinds of lock under one name are not independent: Acquire as %v answered %s; want ErrHeld or ErrInvalid", r.Mode, answer(err))
}
