package drivertest

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var ctxChecks = []promise{{name: "ctx/acquire", every: true,
	text: "Acquire with a context that has ended is no grant, and no fact about the lock.",
	run: func(s *scene) {
		r := s.request()
		s.a.unknown("Acquire", func(ctx context.Context) error {
			_, err := s.a.Acquire(ctx, r)
			s.a.remember(r.Hold)
			return err
		})
		s.a.giveUp(r)
		s.b.mustAcquire(s.rival(r), "what an unknown answer may have taken is gone after a Release")
	},
}, {name: "ctx/renew", every: true,
	text: "Renew with a context that has ended says nothing about a hold, least of all that it is lost.",
	run: func(s *scene) {
		one := s.a.hold(s.requestFor("one"))
		two := s.a.hold(s.requestFor("two"))
		holds := []driver.Hold{one.Hold, two.Hold}
		s.a.unknown("Renew", func(ctx context.Context) error {
			errs := s.a.Renew(ctx, holds)
			s.want(len(errs) == 2, "Renew answers each hold in its slice: got %d answers for 2 holds", len(errs))
			return errors.Join(errs...)
		})
		for _, err := range s.a.renewAll(holds, "afterwards") {
			s.want(err == nil, "a Renew that was cut short harms no hold: the next one answered %w", answer(err))
		}
	},
}, {name: "ctx/release", every: true,
	text: "Release with a context that has ended does not say that the hold is lost.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.unknown("Release", func(ctx context.Context) error { return s.a.Release(ctx, r.Hold) })
		s.a.giveUp(r)
		s.b.mustAcquire(s.rival(r), "Release again after an unknown answer frees the lock")
	},
}, {name: "ctx/watch",
	text: "Watch with a context that has ended does not arm.",
	run: func(s *scene) {
		if w, ok := optional[driver.Watcher](s.a); ok {
			s.a.unknown("Watch", func(ctx context.Context) error { return watchBriefly(ctx, w, s.request()) })
		}
	},
}, {name: "ctx/inspect",
	text: "Inspect and List with a context that has ended answer an error.",
	run: func(s *scene) {
		i, ok := optional[driver.Inspector](s.a)
		if !ok {
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
}, {name: "ctx/revoke", every: true, needs: revocable,
	text: "Revoke with a context that has ended does not claim that the holder was notified, or is gone.",
	run: func(s *scene) {
		r, asked := onRevoke(s.request())
		s.a.hold(r)
		revoker, ok := s.b.Backend.(driver.Revoker)
		if s.over() || !ok {
			s.broke("a backend with Caps.Revocable is a driver.Revoker")
			return
		}
		s.b.unknown("Revoke", func(ctx context.Context) error { return revoker.Revoke(ctx, r.Hold) })
		s.b.revoke(r.Hold, nil, "a holder can be revoked after an unknown outcome")
		s.wantRevoked(asked, "a revoked holder is notified")
	},
}}

// unknown makes a call with a context that has ended. It must return an error that states no fact.
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
		c.broke("%s is no fact: %s answered %w; want any other error", when, name, answer(err))
	}
}

var closeChecks = []promise{{name: "close/leaves-others", every: true,
	text: "Closing one connection frees no lock of another, and the other goes on working.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		s.a.hold(s.requestFor("another"))
		s.a.close()
		c := s.open("C")
		c.refused(s.rival(r), "closing one connection frees no lock of another")
		s.b.renew(r.Hold, nil, "closing one connection leaves the holds of another alone")
		s.b.free(r.Hold, nil, "closing one connection leaves the holds of another alone")
		c.mustAcquire(s.rival(r), "a released lock is free")
	},
}, {name: "close/releases-nothing", every: true, needs: need{ownTTL: true},
	text: "Close leaves holds to end with their TTL.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.close()
		s.b.refused(s.rival(r), "Close does not release: the holder may still work under the lock")
		s.b.free(r.Hold, nil, "a hold outlives its connection")
	},
}, {name: "close/ends-session", every: true, needs: need{session: true},
	text: "Close ends the session, and with it its holds.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.close()
		s.b.eventually(s.rival(r), s.TTL, "Close ends the session and its holds")
	},
}, {name: "close/calls-after",
	text: "After Close every call answers ErrClosed.",
	run: func(s *scene) {
		r := s.request()
		s.a.close()
		s.a.fails(r, driver.ErrClosed, "a call after Close is refused")
		s.a.renew(r.Hold, driver.ErrClosed, "a call after Close is refused")
		s.a.free(r.Hold, driver.ErrClosed, "a call after Close is refused")
		s.a.optionalClosed(r)
		s.b.mustAcquire(r, "a call after Close takes nothing")
	},
}, {name: "close/twice",
	text: "A second Close does no harm.",
	run: func(s *scene) {
		s.a.close()
		s.a.close()
	},
}, {name: "close/watch",
	text: "A watch can be closed after its connection.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		w := s.a.watch(s.rival(r))
		s.a.close()
		w.end()
		s.b.free(r.Hold, nil, "the holder releases")
		s.sleep(4 * s.pause())
		s.b.mustAcquire(s.rival(r), "the watch of a closed connection takes nothing")
	},
}, {name: "close/goroutines",
	text: "A closed connection leaves no goroutine behind.",
	run:  leavesNoGoroutine,
}, {name: "lost/never-without-loss", every: true,
	text: "OnLost is not called for a hold that was held, renewed, asked for again and released.",
	run: func(s *scene) {
		var calls atomic.Int32
		r := s.request()
		r.OnLost = func() { calls.Add(1) }
		s.a.hold(r)
		s.a.renew(r.Hold, nil, "the holder renews")
		s.a.mustAcquire(r, "the same Owner asked again is the same hold")
		s.b.refused(s.rival(r), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.rival(r), "a released lock is free")
		s.sleep(10 * s.pause())
		s.want(calls.Load() == 0, "OnLost reports that a hold is gone: it was called %d times for one that was released", calls.Load())
	},
}}

// optionalClosed wants ErrClosed of the optional calls, if they are there.
func (c *conn) optionalClosed(r driver.Request) {
	if c.over() {
		return
	}
	c.eachOptional(c.ctx, r, func(name string, err error) {
		if name == "Revoke" && !c.caps.Revocable.Has(r.Mode) {
			return
		}
		c.want(errors.Is(err, driver.ErrClosed) || errors.Is(err, driver.ErrSkip), "a call after Close is refused: %s answered %w; want ErrClosed", name, answer(err))
	})
}

// leavesNoGoroutine uses a connection under a profiler label. Goroutines inherit it,
// so that goroutines left behind are not mistaken for other checks' goroutines.
func leavesNoGoroutine(s *scene) {
	r := s.a.hold(s.request())
	s.b.close()
	id := driver.NewOwner()
	pprof.Do(s.ctx, pprof.Labels("drivertest", id), func(context.Context) {
		c := s.open("C")
		c.refused(s.rival(r), "a lock has one holder at a time")
		if w, ok := c.Backend.(driver.Watcher); ok && !s.over() {
			watchBriefly(s.ctx, w, s.rival(r))
		}
		c.hold(s.requestFor("another"))
		c.close()
	})
	// To look at all goroutines is dear: the longer it takes, the less often.
	for began := time.Now(); !s.over(); s.sleep(max(s.pause(), time.Since(began)/10)) {
		left := goroutines(id)
		if left == "" {
			return
		}
		s.want(time.Since(began) < s.Slack, "a closed connection leaves no goroutine behind: it left\n%s", left)
	}
}

// goroutines describes the goroutines with the label.
func goroutines(id string) string {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	var left []string
	for _, stack := range strings.Split(all.String(), "\n\n") {
		if strings.Contains(stack, id) {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

var cutChecks = []promise{{name: "cut/acquire", every: true, needs: cut,
	text: "Acquire over a broken network returns with its context and states no fact; asking again finds out.",
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
		s.b.mustAcquire(s.rival(r), "after an unknown answer one Release is enough")
	},
}, {name: "cut/unsent", every: true, needs: cut,
	text: "After an Acquire that failed with ErrUnsent nothing is held, nor later.",
	run: func(s *scene) {
		r, unsent := s.request(), false
		s.a.cutOff(func(ctx context.Context) {
			_, err := s.a.Acquire(ctx, r)
			s.a.remember(r.Hold)
			unsent = errors.Is(err, driver.ErrUnsent)
		})
		s.a.recovers(s.requestFor("another"))
		if unsent {
			s.b.mustAcquire(s.rival(r), "an attempt that was not sent takes nothing")
		}
	},
}, {name: "cut/renew", every: true, needs: cutShort,
	text: "Renew over a broken network returns with its context and never says that a hold is lost.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.cutOff(func(ctx context.Context) {
			for _, err := range s.a.Renew(ctx, []driver.Hold{r.Hold}) {
				s.a.noFact("Renew", err, "a call without an answer")
			}
		})
		s.a.recovers(r)
		s.a.renew(r.Hold, nil, "a hold outlives a broken network within its TTL")
	},
}, {name: "cut/release", every: true, needs: cutShort,
	text: "A Release that does not arrive returns with its context and states no fact; releasing again is the one that frees the lock.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.a.cutOff(func(ctx context.Context) {
			s.a.noFact("Release", s.a.Release(ctx, r.Hold), "a call without an answer")
		})
		s.a.recovers(s.requestFor("another"))
		s.a.releasesAtLast(r.Hold, false, "the holder")
		s.b.mustAcquire(s.rival(r), "Release again after an unknown answer frees the lock")
	},
}, {name: "unanswered/release", every: true, needs: need{answers: true},
	text: "A Release that is executed without an answer is not taken for unsent, nor for one that came too late, also when another has the lock.",
	run:  unansweredRelease,
}, {name: "cut/others", needs: cut,
	text: "One connection's broken network is not another's.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		s.a.cutOff(func(context.Context) {
			s.b.renew(r.Hold, nil, "one connection's broken network is not another's")
			s.b.free(r.Hold, nil, "one connection's broken network is not another's")
			s.b.mustAcquire(s.rival(r), "one connection's broken network is not another's")
		})
	},
}, {name: "cut/watch", needs: cutShort,
	text: "A release during a break is signalled after it, or the watch's own backend finds out.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		waiter := s.rival(r)
		w := s.a.watch(waiter)
		s.a.cutOff(func(context.Context) { s.b.free(r.Hold, nil, "the holder releases") })
		w.wantSignal("what may have happened during a break is signalled after it")
		s.a.recovers(waiter)
	},
}, {name: "cut/close", needs: cut,
	text: "Close returns, also without a network.",
	run: func(s *scene) {
		s.a.hold(s.request())
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
		c.want(!fact && time.Since(began) < c.Slack, "a connection recovers from a broken network: Acquire answered %w after %v", answer(err), time.Since(began))
		c.sleep(c.pause())
	}
}

// unansweredRelease loses the answer to a release, and gives the lock to another before the release may try again.
func unansweredRelease(s *scene) {
	r := s.a.hold(s.request())
	if s.over() {
		return
	}
	restore := sync.OnceFunc(s.LoseAnswers(s.a.Backend))
	defer restore()
	released := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, max(3*time.Second, 5*s.TTL))
		defer cancel()
		released <- s.a.Release(ctx, r.Hold)
	}()
	next, granted, tries := s.rival(r), false, 40
	for !s.over() && !granted && tries > 0 {
		if _, granted = tryOnce(s.b, next); len(released) > 0 {
			tries--
		}
	}
	restore()
	err := <-released
	if err != nil || !granted {
		s.a.noFact("Release", err, "a call without an answer")
	}
	s.want(!granted || !errors.Is(err, driver.ErrUnsent), "a release that was executed was sent: it answered %w", answer(err))
	s.a.releasesAtLast(r.Hold, true, "the holder")
	if !granted {
		s.fail(ErrNotClaimed) // it was not executed
	}
	s.b.renew(next.Hold, nil, "a release spares the successor")
}
