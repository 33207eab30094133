package drivertest

import "github.com/distlock/distlock/driver"

var capsChecks = []promise{{
	name: "caps/sensible",
	text: "Caps has a name, a mode that excludes all others, both sides of a read/write lock or none, and bounds in order.",
	run: func(s *scene) {
		c := s.caps
		s.want(c.Name != "", "Caps has a name")
		s.want(c.Modes.Has(driver.Exclusive) || c.Modes.Has(driver.Write), "Caps has a mode that excludes all others: got %v", c.Modes)
		s.want(c.Modes&^driver.AllModes == 0, "Caps has known modes only: got %b", c.Modes)
		s.want(c.Modes.Has(driver.Read) == c.Modes.Has(driver.Write), "Read and Write come together: got %v", c.Modes)
		s.want(c.Queueing <= driver.QueueAlways, "Caps.Queueing is one of the three: got %d", c.Queueing)
		s.want(c.Modes&c.QueuedModes == c.QueuedModes, "Caps.QueuedModes are claimed modes: got %v of %v", c.QueuedModes, c.Modes)
		s.want(c.Modes&c.Revocable == c.Revocable, "Caps.Revocable are claimed modes: got %v of %v", c.Revocable, c.Modes)
		s.want(c.Session || !c.Fixed, "Caps.Fixed is about holds that share the life of a session")
		s.want(c.SpanLife >= 0 && (c.SpanLife == 0 || c.Queueing == driver.QueueOnRequest), "Caps.SpanLife is for spans beside a line: got %v", c.SpanLife)
		s.want(c.MinTTL >= 0 && c.Poll >= 0 && (c.MaxTTL == 0 || c.MaxTTL >= c.MinTTL), "bounds of the TTL are in order: got %v to %v", c.MinTTL, c.MaxTTL)
		s.want(!c.Downgrade || c.Modes.Has(driver.Write), "only a backend with Write and Read can downgrade")
	},
}, {
	name: "caps/constant",
	text: "Caps says the same on every connection.",
	run: func(s *scene) {
		if !s.over() {
			s.want(s.a.Caps() == s.b.Caps(), "Caps is the same on every connection: %+v and %+v", s.a.Caps(), s.b.Caps())
		}
	},
}, {
	name: "caps/unclaimed-mode",
	text: "A mode that Caps does not claim is refused with ErrUnsupported.",
	run: func(s *scene) {
		for m := driver.Exclusive; m <= driver.Counted; m++ {
			if !s.caps.Modes.Has(m) {
				s.a.fails(s.requestIn(m, m.String()), driver.ErrUnsupported, "a mode that is not claimed is refused")
			}
		}
	},
}, {
	name:  "caps/unclaimed-line",
	text:  "A place in line is refused with ErrUnsupported in modes without a line.",
	every: true,
	run: func(s *scene) {
		if s.caps.QueueingOf(s.mode) != driver.QueueNever {
			return
		}
		r := s.request()
		s.a.fails(queued(r), driver.ErrUnsupported, "a place in line is refused where there is no line")
		s.a.take(r, "a refused place takes nothing")
		s.b.fails(queued(s.rival(r)), driver.ErrUnsupported, "a place in line is refused where there is no line")
	},
}, {
	name:  "caps/unclaimed-revoke",
	text:  "Asking a holder is refused with ErrUnsupported in modes that Caps.Revocable does not have.",
	every: true,
	run: func(s *scene) {
		if s.caps.Revocable.Has(s.mode) {
			return
		}
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.b.revoke(r.Hold, driver.ErrUnsupported, "a holder is not asked in a mode that is not claimed")
		s.a.renew(r.Hold, nil, "a holder that can't be asked holds on")
	},
}, {
	name:  "caps/unclaimed-downgrade",
	text:  "A downgrade is refused with ErrUnsupported where Caps does not claim it, and the Write hold stays.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read)},
	run: func(s *scene) {
		if s.caps.Downgrade {
			return
		}
		write := s.requestIn(driver.Write, "lock")
		s.a.take(write, "a free lock is granted")
		read := write
		read.Mode = driver.Read
		s.a.fails(read, driver.ErrUnsupported, "a downgrade that is not claimed is refused")
		other := s.rival(write)
		other.Mode = driver.Read
		s.b.refused(other, "a refused downgrade leaves the Write hold")
	},
}}
