package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

// withdrawn is for how long the store refuses the user.
const withdrawn = 2 * time.Second

// What a store refuses because of who asks is given back later: no answer may end anything for good, or leave anything.
var refusedChecks = []promise{{name: "refused/acquire", needs: refusing,
	text: "While the store refuses the user, Acquire states no fact; once it does not, asking again is granted and one Release leaves nothing.",
	run: func(s *scene) {
		r, other := s.request(), s.requestFor("another")
		s.whileRefused(func() {
			s.a.asks(r)
			s.b.asks(other)
		})
		s.a.recovers(r)
		s.b.releasesAtLast(other.Hold, true, "an attempt that is given up")
		s.b.recovers(s.rival(other))
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.a.releasesAtLast(r.Hold, false, "the holder")
		s.b.mustAcquire(s.rival(r), "after a refusal one Release is enough")
	},
}, {name: "refused/wait", needs: refusing,
	text: "While the store refuses the user, an attempt and a watch of one that waits state no fact; afterwards it is granted.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		waiter := s.rival(r)
		s.a.refused(waiter, "a lock has one holder at a time")
		s.whileRefused(func() {
			s.a.asks(waiter)
			if w, ok := s.a.Backend.(driver.Watcher); ok {
				s.a.refusedCall("Watch", false, func(ctx context.Context) error { return watchBriefly(ctx, w, waiter) })
			}
		})
		s.b.releasesAtLast(r.Hold, true, "the holder")
		s.a.recovers(waiter)
	},
}, {name: "refused/queue", needs: need{withdraw: true, queue: true},
	text: "A place in the queue that was requested, and given up, while the store refuses the user blocks nobody afterwards.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		place, late := queued(s.rival(r)), queued(s.rival(r))
		s.a.refused(place, "a lock has one holder at a time")
		s.whileRefused(func() {
			s.a.asks(place)
			s.a.asks(late)
			s.a.refusedCall("Release", true, func(ctx context.Context) error { return s.a.Release(ctx, place.Hold) })
		})
		s.a.releasesAtLast(place.Hold, true, "a place that is given up")
		s.a.releasesAtLast(late.Hold, true, "a place that is given up")
		s.b.releasesAtLast(r.Hold, true, "the holder")
		s.b.recovers(s.rival(r))
	},
}, {name: "refused/renew", needs: refusing,
	text: "While the store refuses the user, Renew says nothing about a hold; afterwards the hold is renewed, unless its session has ended.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.whileRefused(func() {
			s.a.refusedCall("Renew", s.caps.Session, func(ctx context.Context) error {
				errs := s.a.Renew(ctx, []driver.Hold{r.Hold})
				if len(errs) != 1 {
					s.broke("Renew answers each hold in its slice: got %d answers for one", len(errs))
					return nil
				}
				return errs[0]
			})
		})
		for began := time.Now(); !s.over(); s.sleep(s.pause()) {
			errs := s.a.renewAll([]driver.Hold{r.Hold}, "the holder renews")
			if len(errs) == 1 && (errs[0] == nil || s.caps.Session && errors.Is(errs[0], driver.ErrLost)) {
				return
			}
			s.want(s.over() || isUnknown(errs[0]) && time.Since(began) < s.Slack, "a hold outlives a refusal: Renew answered %w after %v", answer(errs[0]), time.Since(began))
		}
	},
}, {name: "refused/release", needs: refusing,
	text: "While the store refuses the user, Release says that nothing was sent, and states no other fact that is not true; releasing again frees the lock.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		released, unsent, unknown := false, false, false
		s.whileRefused(func() {
			for range 20 { // however slow: the first ones may meet connections that the store has cut
				s.a.refusedCall("Release", s.caps.Session || released, func(ctx context.Context) error {
					err := s.a.Release(ctx, r.Hold)
					refused := errors.Is(err, driver.ErrUnsent)
					released = released || err == nil || errors.Is(err, driver.ErrLost)
					unsent, unknown = unsent || refused, unknown || !refused
					return err
				})
				if released || unsent || s.over() {
					return
				}
				s.sleep(s.pause())
			}
		})
		s.want(released || unsent || s.over(), "a release that is refused has ended nothing: no Release answered ErrUnsent")
		s.a.releasesAtLast(r.Hold, unknown, "the holder")
		s.b.recovers(s.rival(r))
	},
}}

// whileRefused runs f, again and again, while the store refuses the user.
func (s *scene) whileRefused(f func()) {
	if s.over() {
		return
	}
	restore := s.Withdraw()
	defer restore()
	for end := time.Now().Add(withdrawn); !s.over() && time.Now().Before(end); {
		f()
		s.sleep(min(20*s.pause(), withdrawn/8))
	}
}

// asks makes an attempt that the store may refuse because of who asks.
func (c *conn) asks(r driver.Request) {
	c.refusedCall("Acquire", false, func(ctx context.Context) error {
		_, err := c.Acquire(ctx, r)
		c.remember(r.Hold)
		if errors.Is(err, driver.ErrHeld) {
			return nil // it was let through, to others that hold
		}
		return err
	})
}

// refusedCall makes a call that the store may refuse because of who asks: that is no fact. lost says that ErrLost may
// be true.
func (c *conn) refusedCall(name string, lost bool, call func(context.Context) error) {
	if c.over() {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, withdrawn/4)
	defer cancel()
	defer c.call(name)()
	err := call(ctx)
	if err == nil || errors.Is(err, driver.ErrSkip) || lost && errors.Is(err, driver.ErrLost) {
		return
	}
	c.noFact(name, err, "a call that the store refuses because of who asks")
}

// releasesAtLast releases h, and repeats a release without an answer. lost says that an earlier release may have ended it.
func (c *conn) releasesAtLast(h driver.Hold, lost bool, who string) {
	for began := time.Now(); !c.over(); c.sleep(c.pause()) {
		err := c.Release(c.ctx, driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode})
		if err == nil || lost && errors.Is(err, driver.ErrLost) {
			return
		}
		c.want(isUnknown(err) && time.Since(began) < c.Slack, "%s releases after a refusal: Release answered %w after %v", who, answer(err), time.Since(began))
	}
}
