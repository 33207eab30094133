package drivertest

import (
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

var kindChecks = []promise{{name: "kinds/never-independent", every: true,
	text: "Two kinds of lock under one name are not both granted: the second one waits.",
	run: func(s *scene) {
		for _, other := range s.otherKinds() {
			r := s.a.hold(s.requestFor("as " + other.String()))
			s.b.excluded(s.requestIn(other, "as "+other.String()))
			s.a.renew(r.Hold, nil, "an attempt as another kind leaves the holder alone")
		}
	},
}, {name: "kinds/free-again", every: true,
	text: "An attempt as another kind leaves nothing behind.",
	run: func(s *scene) {
		for _, other := range s.otherKinds() {
			r := s.a.hold(s.requestFor("as " + other.String()))
			s.b.excluded(s.requestIn(other, "as "+other.String()))
			s.a.free(r.Hold, nil, "the holder releases")
			s.b.mustAcquire(s.rival(r), "an attempt as another kind blocks nothing later")
		}
	},
}, {name: "kinds/one-queue", every: true, needs: queueing,
	text: "Waiters of all kinds have one queue: whoever came first gets the lock first.",
	run: func(s *scene) {
		for _, other := range s.mixableKinds() {
			r := s.a.hold(s.requestFor("before " + other.String()))
			first, second := s.requestIn(other, "before "+other.String()), s.rival(r)
			s.b.refused(queued(first), "another kind of lock waits")
			s.a.refused(queued(second), "a lock has one holder at a time")
			turn := time.Now()
			s.a.free(r.Hold, nil, "the holder releases")
			s.a.inTurn(turn).refused(queued(second), "no request passes a place in the queue, not even one of another kind")
			s.b.inTurn(turn).mustAcquire(queued(first), "the first in the queue gets the lock, whatever its kind")
			s.a.refused(queued(second), "two kinds of lock are not held at once")
			s.b.free(first.Hold, nil, "the holder releases")
			s.a.mustAcquire(queued(second), "the next in the queue gets the lock, whatever its kind")
		}
	},
}, {name: "kinds/no-passing", every: true, needs: queueing,
	text: "No reader and no permit passes a waiter of another kind to join the holders.",
	run: func(s *scene) {
		if s.mode.Alone() {
			return
		}
		for _, other := range s.mixableKinds() {
			r := s.a.hold(s.sharedFor("before " + other.String()))
			w, late := s.requestIn(other, "before "+other.String()), s.another(r)
			s.b.refused(queued(w), "another kind of lock waits")
			s.a.refused(s.another(r), "no try passes a waiter of another kind")
			s.a.refused(queued(late), "no waiter passes one of another kind")
			turn := time.Now()
			s.a.free(r.Hold, nil, "the holder releases")
			s.a.inTurn(turn).refused(queued(late), "no waiter passes one of another kind")
			s.b.inTurn(turn).mustAcquire(queued(w), "the first in the queue gets the lock, whatever its kind")
		}
	},
}, {name: "kinds/head-shares", every: true, needs: queueing,
	text: "The waiters at the head of the queue that may hold together get in together, those behind another kind after it.",
	run: func(s *scene) {
		if s.mode.Alone() {
			return
		}
		for _, other := range s.mixableKinds() {
			r := s.a.hold(s.requestIn(s.alone(), "before "+other.String()))
			one := s.sharedFor("before " + other.String())
			two, late, w := s.another(one), s.another(one), s.requestIn(other, "before "+other.String())
			s.b.refused(queued(one), "another kind of lock waits")
			s.a.refused(queued(two), "another kind of lock waits")
			s.b.refused(queued(w), "another kind of lock waits")
			s.a.refused(queued(late), "another kind of lock waits")
			s.a.free(r.Hold, nil, "the holder releases")
			s.b.mustAcquire(queued(one), "the first in the queue gets the lock")
			s.a.mustAcquire(queued(two), "the next in the queue shares the lock")
			s.a.refused(queued(late), "no waiter passes one of another kind")
			s.b.free(one.Hold, nil, "the holder releases")
			s.b.refused(queued(w), "two kinds of lock are not held at once")
			turn := time.Now()
			s.a.free(two.Hold, nil, "the holder releases")
			s.a.inTurn(turn).refused(queued(late), "no waiter passes one of another kind")
			s.b.inTurn(turn).mustAcquire(queued(w), "the next in the queue gets the lock, whatever its kind")
			s.b.free(w.Hold, nil, "the holder releases")
			s.a.mustAcquire(queued(late), "the next in the queue gets the lock, whatever its kind")
		}
	},
}, {name: "kinds/dead-place", every: true, needs: queueing,
	text: "The place of a waiter of another kind that stops asking does not block those behind it.",
	run: func(s *scene) {
		others := s.mixableKinds()
		if len(others) == 0 {
			return
		}
		r := s.b.hold(s.request())
		dead, next := s.requestIn(others[len(others)-1], "lock"), s.rival(r)
		s.a.refused(queued(s.brief(dead)), "another kind of lock waits")
		s.b.refused(queued(next), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(queued(next), s.TTL, "a dead place does not block those behind it, whatever their kinds")
	},
}, {name: "kinds/signal", every: true, needs: queueing,
	text: "Each waiter in the queue is signalled when its turn comes, whatever the kinds of the others.",
	run: func(s *scene) {
		for _, other := range s.mixableKinds() {
			r := s.a.hold(s.requestFor("before " + other.String()))
			first, second := s.requestIn(other, "before "+other.String()), s.rival(r)
			s.b.refused(queued(first), "another kind of lock waits")
			s.a.refused(queued(second), "a lock has one holder at a time")
			one, two := s.b.watch(queued(first)), s.a.watch(queued(second))
			s.a.free(r.Hold, nil, "the holder releases")
			one.wantSignal("a release is signalled to the first in the queue, whatever its kind")
			s.b.mustAcquire(queued(first), "the first in the queue gets the lock, whatever its kind")
			two.drain()
			s.b.free(first.Hold, nil, "the holder releases")
			two.wantSignal("a release is signalled to the next in the queue, whatever its kind")
			s.a.mustAcquire(queued(second), "the next in the queue gets the lock, whatever its kind")
			one.end()
			two.end()
		}
	},
}, {name: "kinds/shown", every: true, needs: queueing,
	text: "Inspect shows the waiters of all kinds in their order, each with its mode, as far as they are known.",
	run: func(s *scene) {
		for _, other := range s.mixableKinds() {
			r := s.a.hold(s.requestFor("before " + other.String()))
			first, second := s.requestIn(other, "before "+other.String()), s.rival(r)
			s.b.refused(queued(first), "another kind of lock waits")
			s.a.refused(queued(second), "a lock has one holder at a time")
			info := s.b.inspect(r.Name)
			s.shows(info.Holders, false, r)
			s.want(s.over() || info.Mode.SameKind(r.Mode), "Inspect reports the kind of lock that is held: got %v", info.Mode)
			if len(info.Waiters) > 0 {
				s.shows(info.Waiters, true, first, second)
			}
		}
	},
}, {name: "kinds/other-limit", needs: need{queue: true, modes: driver.Modes(driver.Counted)},
	text: "Another limit than that of the permits that wait is ErrInvalid at once, whatever kind is held.",
	run: func(s *scene) {
		if s.keptApart(driver.Counted) {
			return
		}
		r := s.a.hold(s.requestIn(s.alone(), "lock"))
		w := s.permit(2)
		s.b.refused(queued(w), "another kind of lock waits")
		s.a.fails(queued(s.permit(3)), driver.ErrInvalid, "all users of a semaphore agree on its limit, also while they wait")
		s.b.fails(s.permit(1), driver.ErrInvalid, "all users of a semaphore agree on its limit, also while they wait")
		s.b.free(w.Hold, nil, "Release ends a place in the queue")
		s.a.refused(s.permit(3), "a limit counts as long as there are permits that are held or waited for")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.permit(3), "a limit counts as long as there are permits that are held or waited for")
	},
}}

// excluded must be refused as held, or as invalid where kinds are kept apart.
func (c *conn) excluded(r driver.Request) {
	if c.over() {
		return
	}
	_, err := c.acquire(r)
	c.want(errors.Is(err, driver.ErrHeld) || c.KindsApart && errors.Is(err, driver.ErrInvalid),
		"one kind of lock waits for another under its name: Acquire as %v answered %w; want ErrHeld", r.Mode, answer(err))
}

// otherKinds returns the claimed modes of other kinds of lock than the scene's.
func (s *scene) otherKinds() []driver.Mode {
	return slices.DeleteFunc(s.modes(), s.mode.SameKind)
}

// mixableKinds returns those of otherKinds that have a queue in common with the scene's mode.
func (s *scene) mixableKinds() []driver.Mode {
	return slices.DeleteFunc(s.otherKinds(), func(m driver.Mode) bool {
		return s.caps.QueueingOf(m) == driver.QueueNever || s.keptApart(m)
	})
}

// keptApart reports whether the backend keeps the scene's kind and another one apart, where the harness lets it.
func (s *scene) keptApart(other driver.Mode) bool {
	if !s.KindsApart || s.over() {
		return false
	}
	r := s.a.hold(s.requestFor("apart from " + other.String()))
	_, err := s.b.acquire(s.requestIn(other, "apart from "+other.String()))
	s.a.free(r.Hold, nil, "the holder releases")
	return errors.Is(err, driver.ErrInvalid)
}

// sharedFor is requestFor in a mode that two may hold at once.
func (s *scene) sharedFor(name string) driver.Request {
	r := s.requestFor(name)
	if r.Mode == driver.Counted {
		r.Limit = 2
	}
	return r
}

// another is r for a new owner.
func (s *scene) another(r driver.Request) driver.Request {
	r.Owner = driver.NewOwner()
	return r
}
