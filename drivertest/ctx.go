package drivertest

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
)

var ctxChecks = []promise{{
	name:  "ctx/acquire",
	text:  "Acquire with a context that has ended is no grant, and no fact about the lock.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.unknown("Acquire", func(ctx context.Context) error {
			_, err := s.a.Acquire(ctx, r)
			s.a.remember(r.Hold)
			return err
		})
		s.a.giveUp(r)
		s.b.take(s.rival(r), "what an unknown answer may have taken is gone after a Release")
	},
}, {
	name:  "ctx/renew",
	text:  "Renew with a context that has ended says nothing about a hold, least of all that it is lost.",
	every: true,
	run: func(s *scene) {
		one, two := s.requestFor("one"), s.requestFor("two")
		s.a.take(one, "a free lock is granted")
		s.a.take(two, "a free lock is granted")
		holds := []driver.Hold{one.Hold, two.Hold}
		s.a.unknown("Renew", func(ctx context.Context) error {
			errs := s.a.Renew(ctx, holds)
			s.want(len(errs) == 2, "Renew answers each hold in its slice: got %d answers for 2 holds", len(errs))
			return errors.Join(errs...)
		})
		for _, err := range s.a.renewAll(holds, "afterwards") {
			s.want(err == nil, "a Renew that was cut short harms no hold: the next one answered %s", answer(err))
		}
	},
}, {
	name:  "ctx/release",
	text:  "Release with a context that has ended does not say that the hold is lost.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.unknown("Release", func(ctx context.Context) error { return s.a.Release(ctx, r.Hold) })
		s.a.giveUp(r)
		s.b.take(s.rival(r), "Release again after an unknown answer frees the lock")
	},
}, {
	name: "ctx/watch",
	text: "Watch with a context that has ended does not arm.",
	run: func(s *scene) {
		w, ok := s.a.Backend.(driver.Watcher)
		if s.over() || !ok {
			s.fail(ErrNotClaimed)
			return
		}
		r := s.request()
		s.a.unknown("Watch", func(ctx context.Context) error {
			watch, err := w.Watch(ctx, r)
			if err == nil {
				watch.Close()
			}
			return err
		})
	},
}, {
	name: "ctx/inspect",
	text: "Inspect and List with a context that has ended answer an error.",
	run: func(s *scene) {
		i, ok := s.a.Backend.(driver.Inspector)
		if s.over() || !ok {
			s.fail(ErrNotClaimed)
			return
		}
		name := s.request().Name
		s.a.unknown("Inspect", func(ctx context.Context) error {
			_, err := i.Inspect(ctx, name)
			return err
		})
		s.a.unknown("List", func(ctx context.Context) error {
			return i.List(ctx, s.prefix, func(string) bool { return true })
		})
	},
}, {
	name:  "ctx/revoke",
	text:  "Revoke with a context that has ended does not say that the holder was asked, or is gone.",
	every: true,
	needs: revocable,
	run: func(s *scene) {
		r, ear := listening(s.request())
		s.a.take(r, "a free lock is granted")
		revoker, ok := s.b.Backend.(driver.Revoker)
		if s.over() || !ok {
			s.broke("a backend with Caps.Revocable is a driver.Revoker")
			return
		}
		s.b.unknown("Revoke", func(ctx context.Context) error { return revoker.Revoke(ctx, r.Hold) })
		s.b.revoke(r.Hold, nil, "a holder can be asked after an unknown answer")
		s.hears(ear, "a holder that was asked is told")
	},
}}

// unknown makes a call with a context that has ended. It must answer an error, and
// none that states a fact.
func (c *conn) unknown(name string, call func(context.Context) error) {
	if c.over() {
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	defer c.call(name)()
	c.noFact(name, call(ctx), "a call whose context has ended")
}

func (c *conn) noFact(name string, err error, when string) {
	switch {
	case errors.Is(err, driver.ErrSkip):
		c.fail(ErrNotClaimed)
	case err == nil:
		c.broke("%s has no result: %s answered success", when, name)
	case errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrLost), driver.Final(err):
		c.broke("%s is no fact: %s answered %s; want any other error", when, name, answer(err))
	}
}
