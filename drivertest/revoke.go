package drivertest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var revocable = need{revocable: true}

var revokeChecks = []promise{{
	name:  "revoke/asks",
	text:  "A holder that agreed to it is told soon that somebody asks for its lock.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		s.b.revoke(r.Hold, nil, "a holder can be asked for its lock")
		s.hears(ear, "a holder that was asked is told")
	},
}, {
	name:  "revoke/takes-nothing",
	text:  "A holder that was asked holds on until it releases.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		s.b.revoke(r.Hold, nil, "a holder can be asked for its lock")
		s.hears(ear, "a holder that was asked is told")
		s.b.refused(s.rival(r), "Revoke takes nothing from the holder")
		s.a.renew(r.Hold, nil, "Revoke takes nothing from the holder")
		s.a.free(r.Hold, nil, "Revoke takes nothing from the holder")
		s.b.take(s.rival(r), "a lock that was asked for and released is free")
	},
}, {
	name:  "revoke/once",
	text:  "A holder that is asked again and again is told once.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		for _, c := range []*conn{s.b, s.a, s.b} {
			c.revoke(r.Hold, nil, "a holder can be asked again")
		}
		s.hears(ear, "a holder that was asked is told")
		s.sleep(10 * s.pause())
		s.want(ear.calls.Load() == 1, "OnRevoke is called at most once: it was called %d times", ear.calls.Load())
	},
}, {
	name:  "revoke/only-the-named",
	text:  "Nobody is asked but the holder that is named.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.pair())
		beside, other := listening(s.pair())
		if r.Mode.Alone() {
			beside.Name += " beside"
		}
		s.a.take(beside, "a free lock is granted")
		s.a.take(r, "a free lock is granted")
		s.b.revoke(r.Hold, nil, "a holder can be asked for its lock")
		s.hears(ear, "a holder that was asked is told")
		s.silent(other, "nobody is asked but the holder that is named")
	},
}, {
	name:  "revoke/lost",
	text:  "Asking somebody who does not hold is ErrLost, and asks nobody.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.b.revoke(r.Hold, driver.ErrLost, "who never held can't be asked")
		s.a.take(r, "a free lock is granted")
		s.b.revoke(stranger(r), driver.ErrLost, "who does not hold can't be asked")
		s.a.revoke(stranger(r), driver.ErrLost, "who does not hold can't be asked, also on the holder's connection")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.revoke(r.Hold, driver.ErrLost, "who has released can't be asked")
		s.silent(ear, "nobody is asked but the holder that is named")
	},
}, {
	name:  "revoke/expired",
	text:  "Asking for a hold that has ended is ErrLost.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, c := s.expired()
		c.revoke(r.Hold, driver.ErrLost, "a hold that has ended can't be asked for")
	},
}, {
	name:  "revoke/leaves-successor",
	text:  "Asking a holder that was inspected does not ask its successor.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		seen := s.b.seen(r)
		s.a.free(r.Hold, nil, "the holder releases")
		next, ear := listening(s.rival(r))
		next.Mode = r.Mode
		s.a.take(next, "a released lock is free")
		s.b.revoke(seen, driver.ErrLost, "who has released can't be asked")
		s.silent(ear, "a successor is not asked for its predecessor")
	},
}, {
	name:  "revoke/not-in-line",
	text:  "Who stands in line can't be asked, and the holder is not asked for it.",
	every: true,
	needs: need{revocable: true, line: true},
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		w := s.queueUp(r, s.b)[0]
		w.Mode = s.mode
		s.b.revoke(w.Hold, driver.ErrLost, "who stands in line does not hold")
		s.silent(ear, "nobody is asked but the holder that is named")
	},
}, {
	name:  "revoke/latest",
	text:  "A hold that was asked for again is told by what it was asked for with last.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, first := listening(s.request())
		s.a.take(r, "a free lock is granted")
		r, latest := listening(r)
		s.a.take(r, "the same Owner asked again is the same hold")
		s.b.revoke(r.Hold, nil, "a holder can be asked for its lock")
		s.hears(latest, "the OnRevoke of an Owner's latest grant counts")
		s.want(first.calls.Load() == 0, "the OnRevoke of an Owner's latest grant counts: that of an earlier one was called")
	},
}, {
	name:  "revoke/unasked",
	text:  "OnRevoke is not called for a hold that nobody asked for.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		s.a.renew(r.Hold, nil, "the holder renews")
		s.a.take(r, "the same Owner asked again is the same hold")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.take(s.rival(r), "a released lock is free")
		s.silent(ear, "OnRevoke tells that somebody asked")
	},
}, {
	name:  "revoke/without-consent",
	text:  "A holder that has not agreed to be asked holds on.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.b.revokeSilent(r.Hold, "a holder that has not agreed")
		s.sleep(10 * s.pause())
		s.b.refused(s.rival(r), "a holder that has not agreed holds on")
		s.a.renew(r.Hold, nil, "a holder that has not agreed holds on")
		s.a.free(r.Hold, nil, "a holder that has not agreed holds on")
	},
}}

// ear counts the calls of an OnRevoke.
type ear struct {
	calls atomic.Int32
	first chan struct{} // closed by the first call
}

// listening is r with an OnRevoke.
func listening(r driver.Request) (driver.Request, *ear) {
	e := &ear{first: make(chan struct{})}
	r.OnRevoke = func() {
		if e.calls.Add(1) == 1 {
			close(e.first)
		}
	}
	return r, e
}

// hears wants an OnRevoke to be called soon.
func (s *scene) hears(e *ear, rule string) {
	if s.over() {
		return
	}
	select {
	case <-e.first:
	case <-s.ctx.Done():
	case <-time.After(s.Slack):
		s.broke("%s: OnRevoke was not called within %v", rule, s.Slack)
	}
}

// silent wants an OnRevoke not to be called.
func (s *scene) silent(e *ear, rule string) {
	if s.over() {
		return
	}
	s.sleep(10 * s.pause())
	s.want(e.calls.Load() == 0, "%s: OnRevoke was called %d times", rule, e.calls.Load())
}

// pair asks for a lock that two may hold at once if its mode allows that.
func (s *scene) pair() driver.Request {
	r := s.request()
	if r.Mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

// revoke must answer with an error of this kind; nil: success.
func (c *conn) revoke(h driver.Hold, kind error, rule string) {
	if c.over() {
		return
	}
	err := c.ask(h)
	c.want(errors.Is(err, kind), "%s: Revoke on connection %s answered %s; want %s", rule, c.label, answer(err), nameOf(kind))
}

// revokeSilent must succeed or tell that this holder can't be asked.
func (c *conn) revokeSilent(h driver.Hold, who string) {
	if c.over() {
		return
	}
	err := c.ask(h)
	c.want(err == nil || errors.Is(err, driver.ErrUnsupported), "%s is asked in vain: Revoke on connection %s answered %s; want success or ErrUnsupported", who, c.label, answer(err))
}

// ask calls Revoke with what it may rely on, and no more.
func (c *conn) ask(h driver.Hold) error {
	r, ok := c.Backend.(driver.Revoker)
	if !ok {
		return driver.ErrUnsupported
	}
	defer c.call("Revoke")()
	return r.Revoke(c.ctx, driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode})
}
