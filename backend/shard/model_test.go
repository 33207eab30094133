package shard

import (
	"fmt"
	"slices"
	"testing"
)

// model has two processes, their lists, and one lock. It has no time: a process stops relying on a
// registration before it ends, and on a lock before its registrations end.
type model struct {
	lists [2][]set // of each process

	place [2][]int // where each takes the lock, in order

	blind    bool // mutant: processes don't look for other lists
	fewer    int  // mutant: a majority minus this number of registrations suffices
	careless bool // mutant: locks are taken without registrations
}

// set is of members 0 … 3.
type set uint8

func (s set) has(m int) bool { return s>>m&1 == 1 }

func (s set) len() int {
	n := 0
	for m := range 4 {
		n += int(s >> m & 1)
	}
	return n
}

// meets reports whether every majority of s has a member in every majority of o.
func (s set) meets(o set) bool { return s.len()/2+1+o.len()/2+1 > (s | o).len() }

// regState is the state of a registration.
type regState uint8

const (
	none       regState = iota
	made                // before looking for other lists
	registered          // no other list was found
	unknown             // it may exist, but its process does not rely on it
)

// state is a state of the model.
type state struct {
	registrations [2][4]regState
	lock          [4]int8 // the process that has it at this member: 1 or 2; 0: none
	trying        [2]bool
	trusted       [2]bool
}

func (m *model) compatible() bool {
	return slices.ContainsFunc(m.lists[0], func(l set) bool { return slices.Contains(m.lists[1], l) })
}

// covers reports whether process p may take the lock.
func (m *model) covers(s *state, p int) bool {
	if m.careless {
		return true
	}
	for _, at := range m.place[p] {
		if s.registrations[p][at] != registered {
			return false
		}
	}
	for _, l := range m.lists[p] {
		n := 0
		for i := range 4 {
			if l.has(i) && s.registrations[p][i] == registered {
				n++
			}
		}
		if n < l.len()/2+1-m.fewer {
			return false
		}
	}
	return true
}

// next yields the states after one step of process p.
func (m *model) next(s state, p int, add func(state)) {
	m.registrationStep(s, p, add)
	busy := s.trying[p] || s.trusted[p]
	mine := int8(p + 1)
	if !busy && !slices.Contains(s.lock[:], mine) && m.covers(&s, p) {
		n := s
		n.trying[p] = true
		add(n)
	}
	if s.trying[p] {
		m.take(s, p, add)
	}
	if busy { // the attempt, or its trust, ends; the members' part is dropped below
		n := s
		n.trying[p], n.trusted[p] = false, false
		add(n)
	}
	for at := range s.lock {
		if s.lock[at] == mine && !busy {
			n := s
			n.lock[at] = 0
			add(n)
		}
	}
}

// take takes the lock at the next place, if it is free.
func (m *model) take(s state, p int, add func(state)) {
	for i, at := range m.place[p] {
		if s.lock[at] == int8(p+1) {
			continue
		}
		if s.lock[at] != 0 {
			return
		}
		s.lock[at] = int8(p + 1)
		if i == len(m.place[p])-1 {
			s.trying[p], s.trusted[p] = false, true
		}
		add(s)
		return
	}
}

// registrationStep is a step of one of p's registrations.
func (m *model) registrationStep(s state, p int, add func(state)) {
	for at := range 4 {
		if !slices.ContainsFunc(m.lists[p], func(l set) bool { return l.has(at) }) {
			continue
		}
		n := s
		switch e := &n.registrations[p][at]; *e {
		case none:
			*e = made
		case made:
			*e = registered
			if s.registrations[1-p][at] != none && !m.compatible() && !m.blind {
				*e = none
			}
		case registered:
			*e = unknown
			if (s.trying[p] || s.trusted[p]) && !m.covers(&n, p) {
				continue // registrations outlive the locks taken under them
			}
		case unknown:
			*e = none
			back := s
			back.registrations[p][at] = registered // a renewal shows that it existed all the time
			add(back)
		}
		add(n)
	}
}

// search visits all reachable states, and reports whether both trust the lock in one.
func (m *model) search() (states int, both bool) {
	seen, todo := map[state]bool{{}: true}, []state{{}}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.trusted[0] && s.trusted[1] {
			return len(seen), true
		}
		for p := range 2 {
			m.next(s, p, func(n state) {
				if !seen[n] {
					seen[n] = true
					todo = append(todo, n)
				}
			})
		}
	}
	return len(seen), false
}

// places returns the ways in which hashing can place a name: the first of a list in some order.
func places(lists [2][]set) [][2][]int {
	var all [][2][]int
	var order func(rest set, done []int)
	order = func(rest set, done []int) {
		if rest == 0 {
			var p [2][]int
			for i, ls := range lists {
				for _, l := range ls {
					at := done[slices.IndexFunc(done, l.has)]
					if !slices.Contains(p[i], at) {
						p[i] = append(p[i], at)
					}
				}
			}
			if !slices.ContainsFunc(all, func(o [2][]int) bool { return fmt.Sprint(o) == fmt.Sprint(p) }) {
				all = append(all, p)
			}
			return
		}
		for m := range 4 {
			if rest.has(m) {
				order(rest&^(1<<m), append(slices.Clone(done), m))
			}
		}
	}
	order(0b1111, nil)
	return all
}

// try searches all placements until both have the lock in one.
func (m model) try(a, b []set) (states int, both bool) {
	m.lists = [2][]set{a, b}
	for _, m.place = range places(m.lists) {
		n, both := m.search()
		if states += n; both {
			return states, true
		}
	}
	return states, false
}

// Two lists whose majorities meet are never in use at the same time.
func TestModel(t *testing.T)     { listsThatMeet(t, 3, 10, 1_000) }
func TestLongModel(t *testing.T) { listsThatMeet(t, 4, 30, 10_000) }

func listsThatMeet(t *testing.T, members, leastPairs, leastStates int) {
	states, pairs, unmet := 0, 0, 0
	all := set(1) << members
	for a := set(1); a < all; a++ {
		for b := a + 1; b < all; b++ {
			if !a.meets(b) {
				unmet++
				continue
			}
			n, both := model{}.try([]set{a}, []set{b})
			if both {
				t.Errorf("lists %04b and %04b: both have the lock", a, b)
			}
			states, pairs = states+n, pairs+1
		}
	}
	t.Logf("%d pairs of lists, %d states, none with two holders; %d pairs without a common member in all majorities", pairs, states, unmet)
	if pairs < leastPairs || states < leastStates {
		t.Errorf("only %d pairs and %d states", pairs, states)
	}
}

// A process with two lists is compatible with processes that have either, for any lists.
func TestModelOfAChange(t *testing.T)     { changes(t, [][2]set{{0b0011, 0b0110}, {0b0001, 0b0010}}) }
func TestLongModelOfAChange(t *testing.T) { changes(t, [][2]set{{0b0011, 0b0111}, {0b0111, 0b0101}}) }

func changes(t *testing.T, cases [][2]set) {
	states := 0
	for _, c := range cases {
		old, now := c[0], c[1]
		for _, other := range [][]set{{old}, {now}, {old, now}} {
			n, both := model{}.try([]set{old, now}, other)
			if both {
				t.Errorf("lists %04b to %04b, with %04b: both have the lock", old, now, other)
			}
			states += n
		}
	}
	t.Logf("%d states, none with two holders", states)
}

// Each part is needed: without it the model finds two holders.
func TestModelFindsWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		model
		a, b []set
	}{
		"without looking":                       {model{blind: true}, []set{0b0011}, []set{0b0111}},
		"one registration less than a majority": {model{fewer: 1}, []set{0b0111}, []set{0b1111}},
		"locks without registrations":           {model{careless: true}, []set{0b0111}, []set{0b1111}},
		"majorities that need not meet":         {model{}, []set{0b0111}, []set{0b1110}},
		"one list of two, of three needed":      {model{}, []set{0b0011}, []set{0b1100}},
	} {
		if _, both := c.try(c.a, c.b); !both {
			t.Errorf("%s: no state with two holders was found", name)
		}
	}
}
