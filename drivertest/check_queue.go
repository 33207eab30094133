package drivertest

import (
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var queueChecks = []promise{{name: "queue/fifo", every: true, needs: queueing,
	text: "Waiters in the queue get the lock one by one, in the order in which they came.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		via := []*conn{s.b, s.a, s.b} // a place may end with the connection that requested it
		waiters := s.queueUp(r, via...)
		for i, w := range waiters {
			turn := time.Now()
			via[i].free(r.Hold, nil, "the holder releases")
			for k := i + 1; k < len(waiters); k++ {
				via[k].inTurn(turn).refused(queued(waiters[k]), "no request passes a place in the queue, not even the next one's")
			}
			via[i].inTurn(turn).mustAcquire(queued(w), "the first in the queue gets the lock")
			r = w
		}
	},
}, {name: "queue/no-passing", every: true, needs: queueing,
	text: "No request passes a place in the queue: an attempt without Queue is refused too.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		w := s.queueUp(r, s.b)[0]
		turn := time.Now()
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.inTurn(turn).refused(s.rival(r), "an attempt without Queue does not pass a place in the queue")
		s.b.inTurn(turn).refused(s.rival(r), "an attempt without Queue does not pass a place in the queue, also on the waiter's connection")
		s.b.inTurn(turn).mustAcquire(w, "the first in the queue gets the lock, also without Queue")
	},
}, {name: "queue/repeat-keeps-place", needs: queueing,
	text: "An Owner that asks again keeps its place.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiters := s.queueUp(r, s.a, s.b)
		s.a.refused(queued(waiters[0]), "a lock has one holder at a time")
		turn := time.Now()
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.inTurn(turn).refused(queued(waiters[1]), "an Owner that asks again does not go to the end of the queue")
		s.a.inTurn(turn).mustAcquire(queued(waiters[0]), "the first in the queue gets the lock")
	},
}, {name: "queue/place-lives", every: true, needs: queueing,
	text: "A place lasts for the TTL after the attempt that took it.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		since := time.Now()
		s.b.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.sleep(s.TTL * 6 / 10)
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.shutOut(s.rival(r), since, s.TTL, "a place in the queue lasts for the TTL")
	},
}, {name: "queue/repeat-restarts-place", needs: queueing,
	text: "Asking again keeps the place for another TTL.",
	run: func(s *scene) {
		r := s.request()
		w := s.brief(s.rival(r))
		s.a.hold(r)
		s.b.refused(queued(w), "a lock has one holder at a time")
		s.sleep(s.TTL * 6 / 10)
		since := time.Now()
		s.b.refused(queued(w), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.sleep(s.TTL * 6 / 10)
		s.a.shutOut(s.rival(r), since, s.TTL, "asking again keeps the place for another TTL")
	},
}, {name: "queue/place-ends", every: true, needs: queueing,
	text: "The place of a waiter that stops asking ends, and an attempt without Queue is granted.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		s.a.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(s.rival(r), s.TTL, "the place of a waiter that stops asking ends")
	},
}, {name: "queue/dead-place-lets-next-in", every: true, needs: queueing,
	text: "The place of a waiter that stops asking does not block those behind it.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		s.a.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		second, third := s.rival(r), s.rival(r)
		s.b.refused(queued(second), "a lock has one holder at a time")
		s.b.refused(queued(third), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(queued(second), s.TTL, "a dead place does not block those behind it")
		s.b.refused(queued(third), "a dead place leaves the order of the others as it was")
	},
}, {name: "queue/retry", needs: need{queue: true, ownTTL: true},
	text: "A refusal because of a place reports no later end than the place's.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		since := time.Now()
		s.b.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		retry := s.a.shutOut(s.rival(r), since, s.TTL, "an attempt without Queue does not pass a place in the queue").Retry
		s.want(retry <= 2*s.TTL, "HeldError.Retry is the end of a dead place: got %v for a place of %v", retry, s.TTL) // a clock may be estimated from above
	},
}, {name: "queue/release-leaves", every: true, needs: queueing,
	text: "Release ends a place in the queue, once.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiters := s.queueUp(r, s.b, s.a, s.b)
		s.b.free(waiters[0].Hold, nil, "Release ends a place in the queue")
		s.b.free(waiters[0].Hold, driver.ErrLost, "a place that was left can't be left again")
		s.a.free(waiters[1].Hold, nil, "Release ends a place in the queue")
		s.a.free(r.Hold, nil, "a waiter that left has not touched the holder")
		s.b.mustAcquire(queued(waiters[2]), "the places behind one that was left move up")
	},
}, {name: "queue/place-is-no-hold", every: true, needs: queueing,
	text: "A place in the queue can't be renewed as a hold.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		w := s.queueUp(r, s.b)[0]
		s.b.renew(w.Hold, driver.ErrLost, "a waiter in the queue does not hold")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.renew(w.Hold, driver.ErrLost, "the first in the queue does not hold before it asks")
	},
}, {name: "queue/turn-ends", every: true, needs: need{queue: true, ownTTL: true},
	text: "A free lock is kept for the first in the queue for driver.TurnLife, and not until its place ends.",
	run: func(s *scene) {
		r := s.b.hold(s.request())
		s.queueUp(r, s.a)
		second := s.rival(r)
		s.b.refused(queued(second), "a lock has one holder at a time")
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(queued(second), driver.TurnLife, "a first waiter that does not come holds up no other")
	},
}, {name: "queue/dead-client", needs: need{queue: true, ownTTL: true},
	text: "A client that died while several of its callers waited holds up a free lock for two turns at most, and not for one each.",
	run: func(s *scene) {
		client := driver.NewOwners()
		s.deadTurns(func(name string) driver.Request {
			r := s.requestFor(name)
			r.Owner = client.New()
			return r
		})
	},
}, {name: "queue/dead-together", needs: need{queue: true, ownTTL: true, modes: driver.Modes(driver.Write, driver.Read)},
	text: "Dead places whose owners would have got the lock together hold it up at the same time.",
	run: func(s *scene) {
		s.deadTurns(func(name string) driver.Request { return s.requestIn(driver.Read, name) })
	},
}, {name: "queue/shares", needs: queueing,
	text: "Of 16 that want a lock again and again, each gets between half and twice its share.",
	run: func(s *scene) {
		const parties, rounds = 16, 4
		r := s.a.hold(s.request())
		var requests [parties]driver.Request
		for i := range requests {
			requests[i] = queued(s.rival(r))
			s.conn(i).refused(requests[i], "a lock has one holder at a time")
		}
		s.a.free(r.Hold, nil, "the holder releases")
		var left atomic.Int64
		left.Store(parties * rounds)
		var grants [parties]int
		together(parties, func(i int) {
			c := s.conn(i)
			for w := requests[i]; ; {
				c.wait(w)
				if left.Add(-1) < 0 || s.over() {
					c.free(w.Hold, nil, "the holder releases")
					return
				}
				grants[i]++
				// The next place is taken before the release, so that shares do not depend on the machine.
				next := queued(s.rival(r))
				c.refused(next, "a lock has one holder at a time")
				c.free(w.Hold, nil, "the holder releases")
				w = next
			}
		})
		for _, n := range grants {
			s.want(s.over() || n >= rounds/2 && n <= 2*rounds, "each gets between half and twice its share: got %v", grants)
		}
	},
}, {name: "queue/holder-keeps-holding", every: true, needs: queueing,
	text: "A queue changes nothing for the holder.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.queueUp(r, s.b)
		s.a.mustAcquire(r, "a queue does not stop the holder from asking again")
		s.a.renew(r.Hold, nil, "a queue does not stop the holder from renewing")
		s.a.free(r.Hold, nil, "a queue does not stop the holder from releasing")
	},
}, {name: "queue/reader-behind-writer",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	text:  "A new reader does not pass a writer in the queue.",
	run: func(s *scene) {
		r, w := s.reader(), s.writer()
		s.a.hold(r)
		s.b.refused(queued(w), "no writer beside a reader")
		s.a.refused(s.reader(), "a new reader does not pass a writer in the queue")
		late := s.reader()
		s.b.refused(queued(late), "a new reader does not pass a writer in the queue")
		turn := time.Now()
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.inTurn(turn).refused(queued(late), "a new reader does not pass a writer in the queue")
		s.b.inTurn(turn).mustAcquire(queued(w), "the first in the queue gets the lock")
	},
}, {name: "queue/writer-behind-readers",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	text:  "A writer in the queue gets the lock when the readers before it have left, and before the readers that came later.",
	run: func(s *scene) {
		one, two, late, w := s.reader(), s.reader(), s.reader(), s.writer()
		s.a.hold(one)
		s.b.mustAcquire(two, "readers share")
		s.b.refused(queued(w), "no writer beside a reader")
		s.a.refused(queued(late), "a new reader does not pass a writer in the queue")
		s.a.free(one.Hold, nil, "the holder releases")
		s.b.refused(queued(w), "no writer beside the last reader")
		s.a.refused(queued(late), "a new reader does not pass a writer in the queue")
		turn := time.Now()
		s.b.free(two.Hold, nil, "the holder releases")
		s.a.inTurn(turn).refused(queued(late), "a new reader does not pass a writer in the queue")
		s.b.inTurn(turn).mustAcquire(queued(w), "the first in the queue gets the lock")
		s.b.free(w.Hold, nil, "the holder releases")
		s.a.mustAcquire(queued(late), "the next in the queue gets the lock")
	},
}, {name: "queue/dead-reader",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	text:  "The place of a reader that stops asking does not block the writer behind it.",
	run: func(s *scene) {
		r, dead, w := s.writer(), s.brief(s.reader()), s.writer()
		s.b.hold(r)
		s.a.refused(queued(dead), "no reader beside a writer")
		s.b.refused(queued(w), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(queued(w), s.TTL, "a dead place does not block those behind it")
	},
}, {name: "queue/readers-behind-writer-share",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	text:  "Readers behind a writer in the queue get the lock together after it.",
	run: func(s *scene) {
		w, one, two := s.writer(), s.reader(), s.reader()
		s.a.hold(w)
		s.b.refused(queued(one), "no reader beside a writer")
		s.a.refused(queued(two), "no reader beside a writer")
		s.a.free(w.Hold, nil, "the holder releases")
		s.b.mustAcquire(queued(one), "the first in the queue gets the lock")
		s.a.mustAcquire(queued(two), "readers share, also from the queue")
	},
}, {name: "queue/permits", needs: need{queue: true, modes: driver.Modes(driver.Counted)},
	text: "A released permit goes to the first in the queue.",
	run: func(s *scene) {
		one, two, w := s.permit(2), s.permit(2), s.permit(2)
		s.a.mustAcquire(one, "permits up to the limit")
		s.b.mustAcquire(two, "permits up to the limit")
		s.b.refused(queued(w), "no more permits than the limit")
		turn := time.Now()
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.inTurn(turn).refused(s.permit(2), "an attempt without Queue does not pass a place in the queue")
		s.b.inTurn(turn).mustAcquire(queued(w), "the first in the queue gets the lock")
	},
}}

// deadTurns leaves a free lock to several dead places, and wants it to be granted by the time that single dead places have held up
// two other locks, one after the other.
func (s *scene) deadTurns(place func(name string) driver.Request) {
	leave := func(name string, places int) (next driver.Request) {
		w := s.requestFor(name)
		if place(name).Mode == driver.Read {
			w.Mode = driver.Write
		}
		s.b.hold(w)
		for range places {
			s.a.refused(queued(place(name)), "a lock has one holder at a time")
		}
		s.b.free(w.Hold, nil, "the holder releases")
		s.b.inTurn(time.Now()).refused(s.rival(w), "a free lock is kept for the first in the queue")
		return s.rival(w)
	}
	next, granted := leave("lock", 6), false
	for _, name := range []string{"one", "two"} {
		for one, over := leave(name, 1), false; !over && !s.over(); {
			over = first(tryOnce(s.b, one))
			granted = granted || first(tryOnce(s.b, next)) // a turn may begin when somebody asks
		}
	}
	s.want(granted || s.over(), "dead places hold up a free lock together: a lock with six is still refused when two with one each, left later, were granted one after the other")
}

func first(_ driver.Grant, ok bool) bool { return ok }
