package drivertest

import (
	"time"

	"github.com/distlock/distlock/driver"
)

var queueChecks = []promise{{
	name:  "line/fifo",
	text:  "Those who stand in line get in one by one, in the order in which they came.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		via := []*conn{s.b, s.a, s.b} // an Owner asks on one connection: its place may end with that
		waiters := s.queueUp(r, via...)
		s.a.free(r.Hold, nil, "the holder releases")
		for i, w := range waiters {
			for k := i + 1; k < len(waiters); k++ {
				via[k].refused(queued(waiters[k]), "nobody passes a place in line, the next in line neither")
			}
			via[i].take(queued(w), "the first in line gets in")
			via[i].free(w.Hold, nil, "the holder releases")
		}
	},
}, {
	name:  "line/no-passing",
	text:  "Nobody passes a place in line: a try without Queue is refused too.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.queueUp(r, s.b)[0]
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.refused(s.rival(r), "a try does not pass a place in line")
		s.b.refused(s.rival(r), "a try does not pass a place in line, also on the waiter's connection")
		s.b.take(w, "the first in line gets in, also by a try")
	},
}, {
	name:  "line/repeat-keeps-place",
	text:  "Asking again keeps the place that one has.",
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.a, s.b)
		s.a.refused(queued(waiters[0]), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.refused(queued(waiters[1]), "asking again does not send one to the end of the line")
		s.a.take(queued(waiters[0]), "the first in line gets in")
	},
}, {
	name:  "line/place-lives",
	text:  "A place stays for the TTL after the attempt that asked for it.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		since := time.Now()
		s.b.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.sleep(s.TTL * 6 / 10)
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.shutOut(s.rival(r), since, s.TTL, "a place in line stays for the TTL")
	},
}, {
	name:  "line/repeat-restarts-place",
	text:  "Asking again keeps the place for another TTL.",
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		w := s.brief(s.rival(r))
		s.a.take(r, "a free lock is granted")
		s.b.refused(queued(w), "a lock has one holder at a time")
		s.sleep(s.TTL * 6 / 10)
		since := time.Now()
		s.b.refused(queued(w), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		s.sleep(s.TTL * 6 / 10)
		s.a.shutOut(s.rival(r), since, s.TTL, "asking again keeps the place for another TTL")
	},
}, {
	name:  "line/place-ends",
	text:  "The place of one who asks no more ends, and a try gets in.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		s.a.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(s.rival(r), s.TTL, "the place of one who asks no more ends")
	},
}, {
	name:  "line/dead-place-lets-next-in",
	text:  "The place of one who asks no more does not block those behind it.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.b.take(r, "a free lock is granted")
		s.a.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		second, third := s.rival(r), s.rival(r)
		s.b.refused(queued(second), "a lock has one holder at a time")
		s.b.refused(queued(third), "a lock has one holder at a time")
		s.a.fallSilent()
		s.b.free(r.Hold, nil, "the holder releases")
		s.b.eventually(queued(second), s.TTL, "a dead place does not block those behind it")
		s.b.refused(queued(third), "a dead place leaves the order of the others as it was")
	},
}, {
	name:  "line/retry",
	text:  "A refusal because of a place tells no later end than that place has.",
	needs: need{queue: true, ownTTL: true},
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		since := time.Now()
		s.b.refused(queued(s.brief(s.rival(r))), "a lock has one holder at a time")
		s.a.free(r.Hold, nil, "the holder releases")
		retry := s.a.shutOut(s.rival(r), since, s.TTL, "a try does not pass a place in line").Retry
		s.want(retry <= s.TTL+s.TTL/10, "HeldError.Retry is the end of a dead place: got %v for a place of %v", retry, s.TTL)
	},
}, {
	name:  "line/release-leaves",
	text:  "Release ends a place in line, once.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.b, s.a, s.b)
		s.b.free(waiters[0].Hold, nil, "Release ends a place in line")
		s.b.free(waiters[0].Hold, driver.ErrLost, "a place that was left can't be left again")
		s.a.free(waiters[1].Hold, nil, "Release ends a place in line")
		s.a.free(r.Hold, nil, "a waiter that left has not touched the holder")
		s.b.take(queued(waiters[2]), "those behind a place that was left move up")
	},
}, {
	name:  "line/place-is-no-hold",
	text:  "A place in line can't be renewed as a hold.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		w := s.queueUp(r, s.b)[0]
		s.b.renew(w.Hold, driver.ErrLost, "who stands in line does not hold")
		s.a.free(r.Hold, nil, "the holder releases")
		s.b.renew(w.Hold, driver.ErrLost, "who is first in line does not hold before it asks")
	},
}, {
	name:  "line/queued",
	text:  "A grant tells that others stand in line, and then reserves no span.",
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		r.Fences = 10
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.b, s.b)
		s.wantQueued(s.a.take(r, "a line does not stop the holder from asking again"))
		s.a.free(r.Hold, nil, "the holder releases")
		s.wantQueued(s.b.take(queued(waiters[0]), "the first in line gets in"))
	},
}, {
	name:  "line/holder-keeps-holding",
	text:  "A line changes nothing for the holder.",
	every: true,
	needs: queueing,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.queueUp(r, s.b)
		s.a.take(r, "a line does not stop the holder from asking again")
		s.a.renew(r.Hold, nil, "a line does not stop the holder from renewing")
		s.a.free(r.Hold, nil, "a line does not stop the holder from releasing")
	},
}, {
	name:  "line/reader-behind-writer",
	text:  "A new reader does not pass a writer in line.",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	run: func(s *scene) {
		r, w := s.reader(), s.writer()
		s.a.take(r, "a free lock is granted")
		s.b.refused(queued(w), "no writer beside a reader")
		s.a.refused(s.reader(), "a new reader does not pass a writer in line")
		late := s.reader()
		s.b.refused(queued(late), "a new reader does not pass a writer in line")
		s.a.free(r.Hold, nil, "the holder releases")
		s.a.refused(queued(late), "a new reader does not pass a writer in line")
		s.b.take(queued(w), "the first in line gets in")
	},
}, {
	name:  "line/readers-behind-writer-share",
	text:  "Readers that stand behind a writer get in together after it.",
	needs: need{queue: true, modes: driver.Modes(driver.Write, driver.Read)},
	run: func(s *scene) {
		w, one, two := s.writer(), s.reader(), s.reader()
		s.a.take(w, "a free lock is granted")
		s.b.refused(queued(one), "no reader beside a writer")
		s.a.refused(queued(two), "no reader beside a writer")
		s.a.free(w.Hold, nil, "the holder releases")
		s.b.take(queued(one), "the first in line gets in")
		s.a.take(queued(two), "readers share, also out of the line")
	},
}, {
	name:  "line/permits",
	text:  "A permit that is released goes to the first in line.",
	needs: need{queue: true, modes: driver.Modes(driver.Counted)},
	run: func(s *scene) {
		one, two, w := s.permit(2), s.permit(2), s.permit(2)
		s.a.take(one, "permits up to the limit")
		s.b.take(two, "permits up to the limit")
		s.b.refused(queued(w), "no more permits than the limit")
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.refused(s.permit(2), "a try does not pass a place in line")
		s.b.take(queued(w), "the first in line gets in")
	},
}}

// wantQueued wants g to tell that somebody stands in line.
func (s *scene) wantQueued(g driver.Grant) {
	s.want(s.over() || g.Queued, "a grant tells that others stand in line: Grant.Queued is false")
	s.want(s.over() || g.Fences <= 1, "where others stand in line no span is reserved: got %d fences", g.Fences)
}
