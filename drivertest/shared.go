package drivertest

import (
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var (
	readWrite  = need{modes: driver.Modes(driver.Write, driver.Read)}
	downgrades = need{modes: driver.Modes(driver.Write, driver.Read), downgrade: true}
)

var sharedChecks = []promise{{
	name:  "shared/readers-share",
	text:  "Many readers hold at once.",
	needs: readWrite,
	run: func(s *scene) {
		for range 4 {
			s.a.take(s.reader(), "readers share")
			s.b.take(s.reader(), "readers share")
		}
	},
}, {
	name:  "shared/writer-excludes-readers",
	text:  "Beside a writer there is no reader.",
	needs: readWrite,
	run: func(s *scene) {
		w := s.writer()
		s.a.take(w, "a free lock is granted")
		s.b.refused(s.reader(), "no reader beside a writer")
		s.a.refused(s.reader(), "no reader beside a writer")
		s.a.free(w.Hold, nil, "the holder releases")
		s.b.take(s.reader(), "a released lock is free")
	},
}, {
	name:  "shared/reader-excludes-writer",
	text:  "Beside readers there is no writer, until the last has gone.",
	needs: readWrite,
	run: func(s *scene) {
		one, two := s.reader(), s.reader()
		s.a.take(one, "a free lock is granted")
		s.b.take(two, "readers share")
		s.b.refused(s.writer(), "no writer beside a reader")
		s.a.free(one.Hold, nil, "the holder releases")
		s.a.refused(s.writer(), "no writer beside the last reader")
		s.b.free(two.Hold, nil, "the holder releases")
		s.a.take(s.writer(), "without readers the lock is free")
	},
}, {
	name:  "shared/readers-expire-alone",
	text:  "A reader's end by itself ends no other reader's hold.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), ownTTL: true},
	run: func(s *scene) {
		brief, long := s.brief(s.reader()), s.reader()
		s.a.take(long, "a free lock is granted")
		s.a.take(brief, "readers share")
		s.sleep(s.TTL + s.TTL/5)
		s.b.refused(s.writer(), "a reader holds on when another's TTL ends")
		s.a.free(long.Hold, nil, "the holder releases")
		s.b.eventually(s.writer(), s.TTL, "the last reader's end frees the lock")
	},
}, {
	name:  "shared/fence-above-ended",
	text:  "A reader's fence is above those of all holds that had ended before.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), fence: true},
	run: func(s *scene) {
		var last driver.Grant
		for i := range 8 {
			r := s.reader()
			if i%2 == 1 {
				r = s.writer()
			}
			g := s.a.take(r, "a free lock is granted")
			s.rises(last, g, "readers and writers in turn")
			s.a.free(r.Hold, nil, "the holder releases")
			last = g
		}
	},
}, {
	name:  "shared/writer-fence-above-readers",
	text:  "A writer's fence is above those of all readers before it, also while others read.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), fence: true},
	run: func(s *scene) {
		one, two := s.reader(), s.reader()
		first := s.a.take(one, "a free lock is granted")
		second := s.b.take(two, "readers share")
		s.a.free(one.Hold, nil, "the holder releases")
		three := s.reader()
		third := s.a.take(three, "readers share")
		s.rises(first, third, "a reader after one that has left")
		s.b.free(two.Hold, nil, "the holder releases")
		s.a.free(three.Hold, nil, "the holder releases")
		w := s.b.take(s.writer(), "without readers the lock is free")
		s.rises(second, w, "a writer after readers")
		s.rises(third, w, "a writer after readers")
	},
}, {
	name:  "shared/race",
	text:  "Under load a writer is always alone and readers never meet one.",
	needs: readWrite,
	run:   raceReadersAndWriters,
}, {
	name:  "shared/downgrade",
	text:  "A Write hold asked for as Read becomes one: readers get in, writers don't.",
	needs: downgrades,
	run: func(s *scene) {
		w := s.writer()
		s.a.take(w, "a free lock is granted")
		s.b.refused(s.reader(), "no reader beside a writer")
		r := asReader(w)
		s.a.take(r, "a writer can become a reader")
		reader := s.reader()
		s.b.take(reader, "readers share with a downgraded writer")
		s.b.refused(s.writer(), "no writer beside a downgraded one")
		s.b.free(reader.Hold, nil, "the holder releases")
		s.b.refused(s.writer(), "no writer beside a downgraded one")
		s.a.free(r.Hold, nil, "a downgraded hold ends with one Release")
		s.b.take(s.writer(), "a released lock is free")
	},
}, {
	name:  "shared/downgrade-late",
	text:  "A downgrade does not shorten a hold, and one that arrives late shortens nothing.",
	needs: downgrades,
	run: func(s *scene) {
		r := s.lengthened(s.writer())
		s.a.take(asReader(s.brief(r)), "a writer can become a reader")
		r = asReader(r)
		s.outlives(r, "a downgrade for less than is left does not shorten a hold")
		s.a.take(asReader(s.brief(r)), "a downgrade arrives late")
		s.outlives(r, "a downgrade that arrives late does not shorten a hold")
	},
}, {
	name:  "shared/downgrade-fence",
	text:  "A downgrade is a grant: its fence is above the writer's.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read), downgrade: true, fence: true},
	run: func(s *scene) {
		w := s.writer()
		first := s.a.take(w, "a free lock is granted")
		s.rises(first, s.a.take(asReader(w), "a writer can become a reader"), "a downgrade")
	},
}, {
	name:  "shared/downgrade-race",
	text:  "No other writer gets in while a writer becomes a reader.",
	needs: downgrades,
	run: func(s *scene) {
		for range 10 {
			w := s.writer()
			s.a.take(w, "a free lock is granted")
			together(5, func(i int) {
				switch {
				case i == 0:
					s.a.take(asReader(w), "a writer can become a reader")
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

func (s *scene) reader() driver.Request { return s.requestIn(driver.Read, "lock") }
func (s *scene) writer() driver.Request { return s.requestIn(driver.Write, "lock") }

// asReader asks for a downgrade of w.
func asReader(w driver.Request) driver.Request {
	w.Mode = driver.Read
	return w
}

// raceReadersAndWriters lets two writers and six readers work for a quarter of a
// second.
func raceReadersAndWriters(s *scene) {
	var readers, writers atomic.Int32
	until := time.Now().Add(250 * time.Millisecond)
	together(8, func(i int) {
		c, make, mine := s.a, s.reader, &readers
		if i%2 == 1 {
			c = s.b
		}
		if i < 2 {
			make, mine = s.writer, &writers
		}
		for time.Now().Before(until) && !s.over() {
			r := make()
			if _, ok := turn(c, r); !ok {
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
