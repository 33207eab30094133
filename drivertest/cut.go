package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

var (
	cut      = need{cut: true}
	cutShort = need{cut: true, ownTTL: true}
)

var cutChecks = []promise{{
	name:  "cut/acquire",
	text:  "Acquire over a broken network returns with its context and states no fact; asking again tells.",
	needs: cut,
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.cutOff(func(ctx context.Context) {
			_, err := s.a.Acquire(ctx, r)
			s.a.remember(r.Hold)
			s.a.noFact("Acquire", err, "a call without an answer")
		})
		s.a.recovers(r)
		s.b.refused(s.rival(r), "after an unknown answer the same Owner asked again holds")
		s.a.free(r.Hold, nil, "after an unknown answer one Release is enough")
		s.b.take(s.rival(r), "after an unknown answer one Release is enough")
	},
}, {
	name:  "cut/unsent",
	text:  "After an Acquire that failed with ErrUnsent nothing is held, nor later.",
	needs: cut,
	every: true,
	run: func(s *scene) {
		r, unsent := s.request(), false
		s.a.cutOff(func(ctx context.Context) {
			_, err := s.a.Acquire(ctx, r)
			s.a.remember(r.Hold)
			unsent = errors.Is(err, driver.ErrUnsent)
		})
		s.a.recovers(s.requestFor("another"))
		if unsent {
			s.b.take(s.rival(r), "an attempt that was not sent takes nothing")
		}
	},
}, {
	name:  "cut/renew",
	text:  "Renew over a broken network returns with its context and never says that a hold is lost.",
	needs: cutShort,
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.cutOff(func(ctx context.Context) {
			for _, err := range s.a.Renew(ctx, []driver.Hold{r.Hold}) {
				s.a.noFact("Renew", err, "a call without an answer")
			}
		})
		s.a.recovers(r)
		s.a.renew(r.Hold, nil, "a hold outlives a broken network within its TTL")
	},
}, {
	name:  "cut/release",
	text:  "Release over a broken network returns with its context; releasing again frees the lock.",
	needs: cutShort,
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.a.cutOff(func(ctx context.Context) {
			s.a.noFact("Release", s.a.Release(ctx, r.Hold), "a call without an answer")
		})
		s.a.recovers(s.requestFor("another"))
		s.a.giveUp(r)
		s.b.take(s.rival(r), "Release again after an unknown answer frees the lock")
	},
}, {
	name:  "cut/others",
	text:  "One connection's broken network is not another's.",
	needs: cut,
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		s.a.cutOff(func(context.Context) {
			s.b.renew(r.Hold, nil, "one connection's broken network is not another's")
			s.b.free(r.Hold, nil, "one connection's broken network is not another's")
			s.b.take(s.rival(r), "one connection's broken network is not another's")
		})
	},
}, {
	name:  "cut/watch",
	text:  "A release during a break is signalled after it, or the watch's own backend finds out.",
	needs: cutShort,
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		waiter := s.rival(r)
		w := s.a.watch(waiter)
		s.a.cutOff(func(context.Context) { s.b.free(r.Hold, nil, "the holder releases") })
		w.rings("what may have happened during a break is signalled after it")
		s.a.recovers(waiter)
		w.end()
	},
}, {
	name:  "cut/close",
	text:  "Close returns, also without a network.",
	needs: cut,
	run: func(s *scene) {
		s.a.take(s.request(), "a free lock is granted")
		s.a.cutOff(func(context.Context) { s.a.close() })
	},
}}

// cutOff runs f while the connection has no network, with a context that ends soon.
func (c *conn) cutOff(f func(ctx context.Context)) {
	if c.over() {
		return
	}
	restore := c.Cut(c.Backend)
	defer restore()
	defer c.call("a call without a network")()
	ctx, cancel := context.WithTimeout(c.ctx, c.TTL/3)
	defer cancel()
	f(ctx)
	<-ctx.Done()
}

// recovers must be granted as soon as the connection has found its network again.
func (c *conn) recovers(r driver.Request) {
	began := time.Now()
	for !c.over() {
		_, err := c.acquire(r)
		if err == nil {
			return
		}
		fact := errors.Is(err, driver.ErrHeld) || driver.Final(err)
		c.want(!fact && time.Since(began) < c.Slack, "a connection recovers from a broken network: Acquire answered %s after %v", answer(err), time.Since(began))
		c.sleep(c.pause())
	}
}
