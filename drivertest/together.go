package drivertest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

var togetherChecks = []promise{{
	name:  "together/all",
	text:  "Several free locks are granted in one step, each for its own Owner and TTL.",
	every: true,
	run: func(s *scene) {
		rs := s.several()
		for i := range rs {
			rs[i].TTL = max(s.caps.MinTTL, s.long()*time.Duration(2+i)/4)
		}
		s.a.takeAll(rs, "free locks are granted together")
		for _, r := range rs {
			s.b.refused(s.rival(r), "a lock that was taken with others is held")
			s.a.renew(r.Hold, nil, "a lock that was taken with others is renewed")
		}
	},
}, {
	name:  "together/released-alone",
	text:  "Each of the locks that were taken in one step is released by itself, once.",
	every: true,
	run: func(s *scene) {
		rs := s.several()
		grants := s.a.takeAll(rs, "free locks are granted together")
		for i, r := range rs {
			s.a.free(r.Hold, nil, "a lock that was taken with others is released")
			s.a.free(r.Hold, driver.ErrLost, "a released hold can't be released again")
			next := s.b.take(s.rival(r), "a released lock is free")
			s.want(s.over() || !s.caps.Fence || r.Mode == driver.Counted || next.Fence > grants[i].Last(), "fences strictly increase: %d after %d", next.Fence, grants[i].Last())
			for _, held := range rs[i+1:] {
				s.b.refused(s.rival(held), "the release of one lock frees no other")
			}
		}
	},
}, {
	name:  "together/none",
	text:  "If one of several locks is held none of them is taken.",
	every: true,
	run: func(s *scene) {
		for i := range 3 {
			rs := s.several()
			held := s.rival(rs[i])
			s.b.take(held, "a free lock is granted")
			if e := s.a.refusedAll(rs, "all locks or none"); e.Name != "" {
				s.want(e.Name == held.Name, "HeldError.Name is that of a lock that is held: got %.80q, want %.80q", e.Name, held.Name)
			}
			for j, r := range rs {
				s.a.free(r.Hold, driver.ErrLost, "what was refused together has nothing to release")
				if j != i {
					free := s.rival(r)
					s.b.take(free, "if one of several locks is held none of them is taken")
					s.b.free(free.Hold, nil, "the holder releases")
				}
			}
			s.b.free(held.Hold, nil, "the holder releases")
		}
	},
}, {
	name:  "together/none-for-a-moment",
	text:  "If one of several locks is held no other is taken for as much as a moment.",
	every: true,
	run: func(s *scene) {
		rs := excluding(s.several())
		held := rs[1]
		s.b.take(s.rival(held), "a free lock is granted")
		var done atomic.Bool
		together(2, func(i int) {
			const breath = 50 * time.Microsecond
			if i == 0 {
				for range 20 {
					slices.Reverse(rs)
					s.a.refusedAll(rs, "all locks or none")
					s.sleep(breath)
				}
				done.Store(true)
			}
			for n := i; !done.Load() && !s.over(); n++ {
				r := s.requestFor([]string{"one", "three"}[n%2])
				s.b.take(r, "a lock is not taken for a moment by an attempt that is refused")
				s.b.free(r.Hold, nil, "the holder releases")
				s.sleep(breath)
			}
		})
	},
}, {
	name:  "together/race",
	text:  "Of many attempts at locks in common exactly one is granted, and the others hold nothing.",
	every: true,
	run: func(s *scene) {
		for range 8 {
			raceTogether(s)
		}
	},
}, {
	name:  "together/again",
	text:  "Asking again with the same Owners is granted, under greater fences, and counts once.",
	every: true,
	run: func(s *scene) {
		rs := s.several()
		first := s.a.takeAll(rs, "free locks are granted together")
		second := s.a.takeAll(rs, "the same Owners asked again are the same holds")
		for i, r := range rs {
			if !s.over() {
				s.rises(first[i], second[i], "the same Owners asked again")
			}
			s.a.free(r.Hold, nil, "the holder releases")
			s.b.take(s.rival(r), "the same Owner asked again counts once: one Release frees it")
		}
	},
}, {
	name:  "together/completes",
	text:  "An Owner that holds one of the locks already gets the others.",
	every: true,
	run: func(s *scene) {
		rs := s.several()
		first := s.a.take(rs[2], "a free lock is granted")
		grants := s.a.takeAll(rs, "who holds one of several locks gets the others")
		if !s.over() {
			s.rises(first, grants[2], "the same Owner asked again")
		}
		for _, r := range rs {
			s.b.refused(s.rival(r), "a lock that was taken with others is held")
		}
	},
}, {
	name:  "together/expires",
	text:  "Locks that were taken in one step end with their TTL like any other.",
	every: true,
	run: func(s *scene) {
		rs := s.several()
		for i := range rs {
			rs[i].TTL = s.TTL
		}
		s.a.takeAll(rs, "free locks are granted together")
		s.a.fallSilent()
		for _, r := range rs {
			s.b.eventually(s.rival(r), s.TTL, "a hold without renewal ends with its TTL")
		}
	},
}, {
	name:  "together/line",
	text:  "Who takes several locks passes nobody who stands in line for one of them.",
	every: true,
	needs: line,
	run: func(s *scene) {
		rs := s.several()
		holder := s.rival(rs[1])
		s.a.take(holder, "a free lock is granted")
		w := s.queueUp(holder, s.b)[0]
		s.a.free(holder.Hold, nil, "the holder releases")
		s.a.refusedAll(excluding(rs), "nobody passes a place in line")
		s.b.take(s.rival(rs[0]), "if others stand in line for one of several locks none of them is taken")
		s.b.take(w, "the first in line gets in")
	},
}, {
	name:  "together/mixed",
	text:  "Locks of several kinds are taken in one step, and shared as ever.",
	needs: need{modes: driver.Modes(driver.Write, driver.Read)},
	run: func(s *scene) {
		var rs []driver.Request
		for _, m := range s.modes() {
			r := s.requestIn(m, m.String())
			if m == driver.Counted {
				r.Limit = 2
			}
			rs = append(rs, r)
			if !m.Alone() {
				r.Owner = driver.NewOwner()
				s.b.take(r, "a free lock is granted")
			}
		}
		s.a.takeAll(rs, "locks of several kinds are granted together, beside those who share them")
		for _, r := range rs {
			s.b.refused(s.rival(r), "a lock that was taken with others is held")
		}
	},
}}

// several asks for three locks, each for an owner of its own.
func (s *scene) several() []driver.Request {
	var rs []driver.Request
	for _, name := range []string{"one", "two", "three"} {
		rs = append(rs, s.requestFor(name))
	}
	return rs
}

// excluding is rs in modes that no other holder may be beside.
func excluding(rs []driver.Request) []driver.Request {
	rs = slices.Clone(rs)
	for i := range rs {
		if rs[i].Mode == driver.Read {
			rs[i].Mode = driver.Write
		}
	}
	return rs
}

// raceTogether lets 12 try at one moment for two of three locks each: any two of
// them want one in common.
func raceTogether(s *scene) {
	if s.over() {
		return
	}
	var mu sync.Mutex
	var won, lost []driver.Request
	winners := 0
	start := make(chan struct{})
	time.AfterFunc(time.Millisecond, func() { close(start) })
	together(12, func(i int) {
		c := []*conn{s.a, s.b}[i%2]
		all := excluding(s.several())
		rs := []driver.Request{all[i%3], all[(i+1)%3]}
		<-start
		_, err := c.acquireAll(rs)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			winners++
			won = append(won, rs...)
			return
		}
		c.heldTogether(err, "an attempt is granted or refused")
		lost = append(lost, rs...)
	})
	s.want(winners == 1, "exactly one of many attempts at locks in common is granted: got %d grants", winners)
	for _, r := range lost {
		s.a.free(r.Hold, driver.ErrLost, "what was refused together has nothing to release")
	}
	for _, r := range won {
		s.a.free(r.Hold, nil, "the winner releases")
	}
}

// acquireAll makes an attempt and remembers what it may have left in the store.
func (c *conn) acquireAll(rs []driver.Request) ([]driver.Grant, error) {
	t, ok := c.Backend.(driver.Together)
	if !ok {
		return nil, driver.ErrSkip
	}
	defer c.call("AcquireAll")()
	grants, err := t.AcquireAll(c.ctx, slices.Clone(rs))
	if err == nil || !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrSkip) && !driver.Final(err) {
		for _, r := range rs {
			c.remember(r.Hold)
		}
	}
	return grants, err
}

// takeAll must be granted.
func (c *conn) takeAll(rs []driver.Request, rule string) []driver.Grant {
	none := make([]driver.Grant, len(rs))
	if c.over() {
		return none
	}
	grants, err := c.acquireAll(rs)
	switch {
	case errors.Is(err, driver.ErrSkip):
		c.fail(ErrNotClaimed)
	case err != nil:
		c.broke("%s: AcquireAll on connection %s answered %s; want a grant", rule, c.label, answer(err))
	case len(grants) != len(rs):
		c.broke("%s: AcquireAll answers a grant for each request: got %d for %d", rule, len(grants), len(rs))
	default:
		for i, g := range grants {
			c.judge(rs[i], g)
		}
		return grants
	}
	return none
}

// refusedAll must be told that somebody else holds.
func (c *conn) refusedAll(rs []driver.Request, rule string) *driver.HeldError {
	if c.over() {
		return &driver.HeldError{}
	}
	_, err := c.acquireAll(rs)
	return c.heldTogether(err, rule)
}

func (c *conn) heldTogether(err error, rule string) *driver.HeldError {
	held, ok := errors.AsType[*driver.HeldError](err)
	switch {
	case errors.Is(err, driver.ErrSkip):
		c.fail(ErrNotClaimed)
	case !errors.Is(err, driver.ErrHeld):
		c.broke("%s: AcquireAll on connection %s answered %s; want ErrHeld", rule, c.label, answer(err))
	case !ok:
		c.broke("a refusal is a *driver.HeldError: got %T", err)
	default:
		return held
	}
	return &driver.HeldError{}
}
