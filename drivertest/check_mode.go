package drivertest

import (
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var capsChecks = []promise{{name: "caps/sensible",
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
		s.want(!c.Session || !c.Detached, "Caps.Detached is about holds that end with no session")
		s.want(!c.Session || !c.Observed, "Caps.Observed is about holds that end with no session")
		s.want(c.Late >= 0 && (c.Late == 0 || c.Observed), "Caps.Late is about holds that are Observed: got %v", c.Late)
		s.want(c.MinTTL >= 0 && c.Poll >= 0 && (c.MaxTTL == 0 || c.MaxTTL >= c.MinTTL), "bounds of the TTL are in order: got %v to %v", c.MinTTL, c.MaxTTL)
		s.want(!c.Downgrade || c.Modes.Has(driver.Write), "only a backend with Write and Read can downgrade")
	},
}, {name: "caps/constant",
	text: "Caps says the same on every connection.",
	run: func(s *scene) {
		if !s.over() {
			s.want(s.a.Caps() == s.b.Caps(), "Caps is the same on every connection: %+v and %+v", s.a.Caps(), s.b.Caps())
		}
	},
}, {name: "caps/unclaimed-mode",
	text: "A mode that Caps does not claim is refused with ErrUnsupported.",
	run: func(s *scene) {
		for m := driver.Exclusive; m <= driver.Counted; m++ {
			if !s.caps.Modes.Has(m) {
				s.a.fails(s.requestIn(m, m.String()), driver.ErrUnsupported, "a mode that is not claimed is refused")
			}
		}
	},
}, {name: "caps/unclaimed-queue", every: true,
	text: "A place in the queue is refused with ErrUnsupported in modes without a queue.",
	run: func(s *scene) {
		if s.caps.QueueingOf(s.mode) != driver.QueueNever {
			return
		}
		r := s.request()
		s.a.fails(queued(r), driver.ErrUnsupported, "a place in the queue is refused where there is no queue")
		s.a.mustAcquire(r, "a refused place takes nothing")
		s.b.fails(queued(s.rival(r)), driver.ErrUnsupported, "a place in the queue is refused where there is no queue")
	},
}, {name: "caps/unclaimed-revoke", every: true,
	text: "Revoke is refused with ErrUnsupported in modes that Caps.Revocable does not have.",
	run: func(s *scene) {
		if s.caps.Revocable.Has(s.mode) {
			return
		}
		r := s.a.hold(s.request())
		s.b.revoke(r.Hold, driver.ErrUnsupported, "a holder is not revoked in a mode that is not claimed")
		s.a.renew(r.Hold, nil, "a holder that can't be revoked keeps the lock")
	},
}, {name: "caps/unclaimed-downgrade", needs: need{modes: driver.Modes(driver.Write, driver.Read)},
	text: "A downgrade is refused with ErrUnsupported where Caps does not claim it, and the Write hold stays.",
	run: func(s *scene) {
		if s.caps.Downgrade {
			return
		}
		write := s.a.hold(s.requestIn(driver.Write, "lock"))
		read := write
		read.Mode = driver.Read
		s.a.fails(read, driver.ErrUnsupported, "a downgrade that is not claimed is refused")
		other := s.rival(write)
		other.Mode = driver.Read
		s.b.refused(other, "a refused downgrade leaves the Write hold")
	},
}}

var sharedChecks = []promise{{name: "shared/readers-share", needs: readWrite,
	text: "Many readers hold at once.",
	run: func(s *scene) {
		for range 4 {
			s.a.mustAcquire(s.reader(), "readers share")
			s.b.mustAcquire(s.reader(), "readers share")
		}
	},
}, {name: "shared/writer-excludes-readers", needs: readWrite,
	text: "Beside a writer there is no reader.",
	run: func(s *scene) {
		w := s.a.hold(s.writer())
		s.b.refused(s.reader(), "no reader beside a writer")
		s.a.refused(s.reader(), "no reader beside a writer")
		s.a.free(w.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.reader(), "a released lock is free")
	},
}, {name: "shared/reader-excludes-writer", needs: readWrite,
	text: "Beside readers there is no writer, until the last has gone.",
	run: func(s *scene) {
		one := s.a.hold(s.reader())
		two := s.b.holdBy(s.reader(), "readers share")
		s.b.refused(s.writer(), "no writer beside a reader")
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.refused(s.writer(), "no writer beside the last reader")
		s.b.free(two.Hold, nil, "the holder releases")
		s.a.mustAcquire(s.writer(), "without readers the lock is free")
	},
}, {name: "shared/readers-expire-alone",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), ownTTL: true},
	text:  "A reader's end by itself ends no other reader's hold.",
	run: func(s *scene) {
		brief, long := s.brief(s.reader()), s.reader()
		s.a.hold(long)
		s.a.mustAcquire(brief, "readers share")
		s.sleep(s.TTL + s.TTL/5)
		s.b.refused(s.writer(), "a reader holds on when another's TTL ends")
		s.a.free(long.Hold, nil, "the holder releases")
		s.b.eventually(s.writer(), s.TTL, "the last reader's end frees the lock")
	},
}, {name: "shared/fence-above-ended",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), fence: true},
	text:  "A reader's fence is above the fences of all holds that had ended before.",
	run: func(s *scene) {
		var last driver.Grant
		for i := range 8 {
			r := s.reader()
			if i%2 == 1 {
				r = s.writer()
			}
			g := s.a.mustAcquire(r, "a free lock is granted")
			s.rises(last, g, "readers and writers in turn")
			s.a.free(r.Hold, nil, "the holder releases")
			last = g
		}
	},
}, {name: "shared/writer-fence-above-readers",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), fence: true},
	text:  "A writer's fence is above the fences of all readers before it, also while others read.",
	run: func(s *scene) {
		one, two := s.reader(), s.reader()
		first := s.a.mustAcquire(one, "a free lock is granted")
		second := s.b.mustAcquire(two, "readers share")
		s.a.free(one.Hold, nil, "the holder releases")
		three := s.reader()
		third := s.a.mustAcquire(three, "readers share")
		s.rises(first, third, "a reader after one that has left")
		s.b.free(two.Hold, nil, "the holder releases")
		s.a.free(three.Hold, nil, "the holder releases")
		w := s.b.mustAcquire(s.writer(), "without readers the lock is free")
		s.rises(second, w, "a writer after readers")
		s.rises(third, w, "a writer after readers")
	},
}, {name: "shared/race", needs: readWrite,
	text: "Under load a writer is always alone and readers never meet one.",
	run:  raceReadersAndWriters,
}, {name: "shared/downgrade", needs: downgrades,
	text: "A Write hold asked for as Read becomes one: readers get in, writers don't.",
	run: func(s *scene) {
		w := s.a.hold(s.writer())
		s.b.refused(s.reader(), "no reader beside a writer")
		r := asReader(w)
		s.a.mustAcquire(r, "a writer can become a reader")
		reader := s.reader()
		s.b.mustAcquire(reader, "readers share with a downgraded writer")
		s.b.refused(s.writer(), "no writer beside a downgraded one")
		s.b.free(reader.Hold, nil, "the holder releases")
		s.b.refused(s.writer(), "no writer beside a downgraded one")
		s.a.free(r.Hold, nil, "a downgraded hold ends with one Release")
		s.b.mustAcquire(s.writer(), "a released lock is free")
	},
}, {name: "shared/downgrade-late", needs: downgrades,
	text: "A downgrade does not shorten a hold, and one that arrives late shortens nothing.",
	run: func(s *scene) {
		r := s.lengthened(s.writer())
		s.a.mustAcquire(asReader(s.brief(r)), "a writer can become a reader")
		r = asReader(r)
		s.outlives(r, "a downgrade for less than is left does not shorten a hold")
		s.a.mustAcquire(asReader(s.brief(r)), "a downgrade arrives late")
		s.outlives(r, "a downgrade that arrives late does not shorten a hold")
	},
}, {name: "shared/downgrade-fence",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), downgrade: true, fence: true},
	text:  "A downgrade is a grant: its fence is above the writer's.",
	run: func(s *scene) {
		w := s.writer()
		first := s.a.mustAcquire(w, "a free lock is granted")
		s.rises(first, s.a.mustAcquire(asReader(w), "a writer can become a reader"), "a downgrade")
	},
}, {name: "shared/downgrade-race", needs: downgrades,
	text: "No other writer gets in while a writer becomes a reader.",
	run: func(s *scene) {
		for range 10 {
			w := s.a.hold(s.writer())
			together(5, func(i int) {
				switch {
				case i == 0:
					s.a.mustAcquire(asReader(w), "a writer can become a reader")
				case i%2 == 0:
					s.a.refused(s.writer(), "no other writer during a downgrade")
				default:
					s.b.refused(s.writer(), "no other writer during a downgrade")
				}
			})
			s.b.refused(s.writer(), "no writer beside a downgraded one")
			s.a.free(asReader(w).Hold, nil, "a downgraded hold ends with one Release")
		}
	},
}}

// raceReadersAndWriters lets two writers and six readers work for a quarter of a
// second.
func raceReadersAndWriters(s *scene) {
	var readers, writers atomic.Int32
	until := time.Now().Add(250 * time.Millisecond)
	together(8, func(i int) {
		c, make, mine := s.conn(i), s.reader, &readers
		if i < 2 {
			make, mine = s.writer, &writers
		}
		for time.Now().Before(until) && !s.over() {
			r := make()
			if _, ok := tryOnce(c, r); !ok {
				continue
			}
			mine.Add(1)
			s.sleep(50 * time.Microsecond)
			w, rd := writers.Load(), readers.Load()
			s.want(w == 0 || w == 1 && rd == 0, "a writer is alone: %d writers and %d readers at once", w, rd)
			mine.Add(-1)
			c.free(r.Hold, nil, "the holder releases")
			s.sleep(s.pause())
		}
	})
}

var countedChecks = []promise{{name: "counted/limit", needs: semaphore,
	text: "As many permits as the limit, and not one more.",
	run: func(s *scene) {
		for range 2 {
			s.a.mustAcquire(s.permit(4), "permits up to the limit")
			s.b.mustAcquire(s.permit(4), "permits up to the limit")
		}
		s.a.refused(s.permit(4), "no more permits than the limit")
		s.b.refused(s.permit(4), "no more permits than the limit")
	},
}, {name: "counted/release-frees-one", needs: semaphore,
	text: "A released permit lets one in.",
	run: func(s *scene) {
		one := s.a.holdBy(s.permit(2), "permits up to the limit")
		s.b.mustAcquire(s.permit(2), "permits up to the limit")
		s.a.free(one.Hold, nil, "the holder releases")
		s.b.mustAcquire(s.permit(2), "a released permit is free")
		s.b.refused(s.permit(2), "a released permit lets one in, not two")
	},
}, {name: "counted/double-release-frees-one", needs: semaphore,
	text: "A permit that is released twice lets one in, not two.",
	run: func(s *scene) {
		one := s.a.holdBy(s.permit(2), "permits up to the limit")
		s.b.mustAcquire(s.permit(2), "permits up to the limit")
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.free(one.Hold, driver.ErrLost, "a released permit can't be released again")
		s.b.mustAcquire(s.permit(2), "a released permit is free")
		s.b.refused(s.permit(2), "a permit released twice lets one in, not two")
	},
}, {name: "counted/race", needs: semaphore,
	text: "Of many attempts at one moment exactly the limit is granted, with distinct fences.",
	run: func(s *scene) {
		for range 8 {
			winners := s.attempts(16, func() driver.Request { return s.permit(3) })
			s.want(winners == 3 || s.over(), "exactly the limit is granted: got %d of 3 permits", winners)
		}
	},
}, {name: "counted/distinct-fences", needs: need{modes: driver.Modes(driver.Counted), fence: true},
	text: "No two permits have the same fence.",
	run: func(s *scene) {
		seen := map[uint64]bool{}
		for range 4 {
			for _, c := range []*conn{s.a, s.b} {
				g := c.mustAcquire(s.permit(8), "permits up to the limit")
				s.want(!seen[g.Fence], "permits have distinct fences: %d was given twice", g.Fence)
				seen[g.Fence] = true
			}
		}
	},
}, {name: "counted/other-limit", needs: semaphore,
	text: "Another limit than that in use is ErrInvalid, and takes nothing.",
	run: func(s *scene) {
		r := s.permit(3)
		s.a.mustAcquire(r, "permits up to the limit")
		s.b.fails(s.permit(2), driver.ErrInvalid, "all users of a semaphore agree on its limit")
		s.b.fails(s.permit(4), driver.ErrInvalid, "all users of a semaphore agree on its limit")
		s.b.mustAcquire(s.permit(3), "an attempt with another limit takes nothing")
		s.b.mustAcquire(s.permit(3), "an attempt with another limit takes nothing")
		s.b.refused(s.permit(3), "an attempt with another limit does not change it")
	},
}, {name: "counted/expired-permit", needs: semaphore,
	text: "A permit whose TTL ended is free again, and only that one.",
	run: func(s *scene) {
		s.b.mustAcquire(s.permit(2), "permits up to the limit")
		s.a.mustAcquire(s.brief(s.permit(2)), "permits up to the limit")
		s.a.fallSilent()
		s.b.eventually(s.permit(2), s.TTL, "a permit without renewal ends with its TTL")
		s.b.refused(s.permit(2), "the end of a permit lets one in, not two")
	},
}, {name: "counted/renew-one", needs: need{modes: driver.Modes(driver.Counted), ownTTL: true},
	text: "Renewing one permit prolongs no other.",
	run: func(s *scene) {
		one := s.a.holdBy(s.permit(2), "permits up to the limit")
		two := s.a.holdBy(s.brief(s.permit(2)), "permits up to the limit")
		s.a.renew(one.Hold, nil, "the holder renews")
		s.b.eventually(s.permit(2), s.TTL, "renewing one permit prolongs no other")
		s.a.renew(two.Hold, driver.ErrLost, "a permit that has ended can't be renewed")
		s.a.renew(one.Hold, nil, "the end of a permit ends no other")
	},
}}
