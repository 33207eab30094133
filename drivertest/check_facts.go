package drivertest

import (
	"maps"
	"time"

	"github.com/distlock/distlock/driver"
)

// What a grant says, every connection is told at once: tools and other processes act on it.
var factChecks = []promise{{name: "facts/grant", every: true,
	text: "What a grant says is what others are told at once, by Inspect and by a refusal: owner, mode, fence (or never), limit and Meta.",
	run: func(s *scene) {
		r := s.request()
		r.Meta = map[string]string{"host": "db 1", "note": "é 🔒"}
		early := s.told(r, s.a.mustAcquire(r, "a free lock is granted"))
		g := s.a.mustAcquire(r, "the same Owner asked again holds")
		again := s.told(r, g)
		r.Hold.Fence = g.Last()
		s.a.renew(r.Hold, nil, "the holder renews")
		late := s.told(r, g)
		s.a.free(r.Hold, nil, "the holder releases")
		r.Owner, r.Hold.Fence = driver.NewOwner(), 0
		next := s.told(r, s.a.mustAcquire(r, "a released lock is free"))
		s.want(s.over() || (early > 0) == (late > 0) && (again > 0) == (late > 0) && (next > 0) == (late > 0),
			"Inspect reports a fence at once, or never: got %d after the grant, %d asked again, %d renewed, %d of the next grant", early, again, late, next)
		if s.caps.Fence && late == 0 {
			s.fail(ErrNotClaimed)
		}
	},
}, {name: "facts/downgrade", needs: downgrades,
	text: "What a downgrade says is what others are told at once.",
	run: func(s *scene) {
		w := s.writer()
		w.Meta = map[string]string{"host": "db 1"}
		before := s.told(w, s.a.mustAcquire(w, "a free lock is granted"))
		after := s.told(asReader(w), s.a.mustAcquire(asReader(w), "a writer can become a reader"))
		s.want(s.over() || (before > 0) == (after > 0), "Inspect reports a fence at once, or never: got %d as a writer, %d as a reader", before, after)
	},
}, {name: "facts/held", every: true,
	text: "How long a lock has been held counts from its grant: a renewal does not restart it.",
	run: func(s *scene) {
		before, r := time.Now(), s.a.hold(s.request())
		since := time.Now()
		for range 2 {
			s.sleep(1500 * time.Millisecond) // some stores count seconds
			s.a.renew(r.Hold, nil, "the holder renews")
		}
		least := time.Since(since) - time.Second
		for _, h := range s.b.inspect(r.Name).Holders {
			s.want(h.Held < 0 || h.Held >= least, "Held counts from the grant: got %v, want at least %v", h.Held, least)
			s.want(h.Held <= time.Since(before)+time.Second, "Held counts from the grant: got %v, want at most %v", h.Held, time.Since(before))
		}
	},
}}

// told wants connection B to be told what A was granted. It returns the fence that Inspect reports, 0 if it is not known.
func (s *scene) told(r driver.Request, g driver.Grant) (fence uint64) {
	for _, h := range s.b.refused(s.rival(r), "a lock has one holder at a time").Holders {
		s.want(h.Owner == "" || h.Owner == r.Owner && h.Mode == r.Mode, "a refusal names the holder: got %s %v, want %s %v", h.Owner, h.Mode, r.Owner, r.Mode)
		s.want(h.Fence == 0 || h.Fence == g.Fence, "a refusal names the fence that was granted: got %d, want %d", h.Fence, g.Fence)
		s.want(h.Meta == nil || maps.Equal(h.Meta, r.Meta), "a refusal has the Meta that was given: got %q, want %q", h.Meta, r.Meta)
	}
	info := s.b.inspect(r.Name)
	s.shows(info.Holders, false, r)
	if s.over() {
		return 0
	}
	h := info.Holders[0]
	s.want(h.Fence == 0 || h.Fence == g.Fence, "Inspect reports the fence that was granted: got %d, want %d", h.Fence, g.Fence)
	s.want(info.Limit == r.Limit, "Inspect reports the limit: got %d, want %d", info.Limit, r.Limit)
	s.want(maps.Equal(h.Meta, r.Meta), "Inspect reports the Meta that was given: got %q, want %q", h.Meta, r.Meta)
	return h.Fence
}
