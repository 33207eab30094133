package quorum_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// This is the protocol as a state machine. The test visits every reachable state. It mirrors the
// code as follows.
//
//   - An attempt is one Owner. It asks all members (acquire.go, ask). A request lands at any later
//     moment or never, also after the attempt was given up, and so does the answer. A refusal has
//     no effect, so it is the same as a request that has not landed yet. That covers the favourite
//     of a split vote, which asks again (refused).
//   - When the attempt has heard of a majority, whichever answers came first, it chooses the
//     fences from the greatest of theirs on (chooseFences), and asks members whose counter is
//     below the last one to raise it (raise). That request, too, lands at any moment; the member
//     checks the Owner.
//   - When a majority has raised, the attempt holds (won), and relies on it until its deadline, or
//     until it releases. It may be given up at any moment before.
//   - The hold of a finished attempt is released in any order, at any moment or never (release), or
//     expires. A member lets a hold expire only after its Owner's deadline: requests to members
//     are for longer (drift), and members count from later on. Renewal postpones the deadline.
//   - With extends, a life is short or long. A holder sends a renewal for the short life, and then
//     one for the long life, each of which lands at any moment or never. When a majority has done
//     the latter it relies on the long life, and members may end short ones (extend). A request
//     for less than is left, also an attempt that lands late, shortens nothing.
//   - A member that crashes with its memory is the same as one that messages do not reach for a
//     while. One that crashes without it is empty. A holder may win back its vote there (renew.go,
//     winBack).
//   - A delayed restart comes after all TTLs that had begun before it: an attempt that counted the
//     member's vote has come to its deadline, or was renewed by a majority of others.
const (
	modelMembers  = 3
	modelAttempts = 3
	modelMajority = modelMembers/2 + 1
)

// model is the protocol, and its mutation.
type model struct {
	attempts     int   // at most modelAttempts
	span         uint8 // fences that each attempt requests
	refence      bool  // holders acquire again, once, as for a hand-off or a downgrade
	extends      bool  // holders renew for longer, and their earlier renewals land late
	setsLife     bool  // a renewal may shorten a longer life
	attemptSets  bool  // an attempt may
	majority     int
	noWriteBack  bool  // one round only
	blind        bool  // the member raises its counter without checking the Owner
	uneven       bool  // a member's counter is ahead, as a failed attempt leaves it
	clockJumps   bool  // members let holds expire at any moment
	crashes      uint8 // of members, which lose their memory
	delayed      bool  // … and restart late
	clockCounter bool  // … with a counter that goes on from a clock
}

type phase uint8

const (
	voting phase = iota
	raising
	holding
	ended // released, given up, or at its deadline: members may end its hold
)

type mail uint8

const (
	sent   mail = iota // the request is on its way
	landed             // the member has granted; the attempt learns of it at any moment
	raise              // the request to raise is on its way
	done               // the member has raised, or later messages no longer matter
)

// world is one state. It is comparable. column has the state of one member, so that worlds that
// differ only in the members' order can be made equal.
type world struct {
	columns  [modelMembers]column
	attempts [modelAttempts]attempt
	top      uint8 // the greatest fence that was ever granted
	clock    uint8 // the greatest that any member ever gave
	crashes  uint8
}

type column struct {
	owner   uint8 // attempt + 1; 0: free
	counter uint8
	long    bool                // the owner's life is the long one
	late    [modelAttempts]bool // a renewal for the short life is on its way
	down    bool
	mails   [modelAttempts]mail
	fences  [modelAttempts]uint8 // as granted, until they are numbered
}

type attempt struct {
	phase phase
	last  uint8
	again bool // it held before, and acquires again
	long  bool // a majority has renewed it for the long life
}

func (a attempt) believes() bool { return a.phase == holding || a.again && a.phase != ended }

// number returns the column as a number, so that columns have an order.
func (c column) number() uint64 {
	n := uint64(c.owner)<<8 | uint64(c.counter)
	if c.down {
		n |= 1 << 16
	}
	if c.long {
		n |= 1 << 17
	}
	for i, late := range c.late {
		if late {
			n |= 1 << (18 + i)
		}
	}
	for i := range c.mails {
		n = n<<12 | uint64(c.mails[i])<<8 | uint64(c.fences[i])
	}
	return n
}

// step is a possible next state. broken names the promise that it breaks.
type step struct {
	world
	what   string
	broken string
}

// next returns all steps from w.
func (m model) next(w world) []step {
	var steps []step
	add := func(what string, change func(*world) (broken string)) {
		n := w
		broken := change(&n)
		m.forget(&n)
		slices.SortFunc(n.columns[:], func(a, b column) int { return cmp.Compare(a.number(), b.number()) })
		steps = append(steps, step{n, what, broken})
	}
	for a := range m.attempts {
		m.ofAttempt(w, a, add)
		for i := range w.columns {
			if !w.columns[i].down {
				m.ofMember(w, a, i, add)
			}
		}
	}
	for i := range w.columns {
		m.ofCrashes(w, i, add)
	}
	return steps
}

// forget removes details that no longer make a difference, so that there are fewer states.
func (m model) forget(w *world) {
	for i := range w.columns {
		c := &w.columns[i]
		for a, at := range w.attempts {
			if at.phase == ended && c.owner != uint8(a+1) {
				c.late[a] = false
			}
			gone := at.phase == ended && c.mails[a] != sent
			if gone && (c.mails[a] != raise || !m.blind && c.owner != uint8(a+1)) {
				c.mails[a] = done
			}
			if c.mails[a] != landed {
				c.fences[a] = 0
			}
		}
	}
}

type adder func(what string, change func(*world) string)

// ofAttempt returns the steps that a client makes by itself.
func (m model) ofAttempt(w world, a int, add adder) {
	at := w.attempts[a]
	if at.phase == voting {
		for _, first := range w.majorities(a, m.majority) {
			add(fmt.Sprintf("%d hears of a majority, the greatest fence is %d", a, first), func(n *world) string {
				return m.number(n, a, first)
			})
		}
	}
	if at.phase == raising && w.count(a, done) >= m.majority {
		add(fmt.Sprintf("%d holds with fences up to %d", a, at.last), func(n *world) string { return m.win(n, a) })
	}
	if at.phase != ended && (w.begun(a) || at.again) {
		add(fmt.Sprintf("%d gives up, releases, or comes to its deadline", a), func(n *world) string {
			n.attempts[a] = attempt{phase: ended}
			if m.blind {
				n.attempts[a].last = at.last
			}
			return ""
		})
	}
	if m.refence && at.phase == holding && !at.again {
		add(fmt.Sprintf("%d asks again, for greater fences", a), func(n *world) string {
			n.attempts[a] = attempt{phase: voting, again: true, long: at.long}
			for i := range n.columns {
				n.columns[i].mails[a] = sent
			}
			return ""
		})
	}
}

// extend returns the steps of renewals: an early one for the short life, and one for the long.
func (m model) extend(w world, a, i int, add adder) {
	c, at := w.columns[i], w.attempts[a]
	if !m.extends || c.owner != uint8(a+1) {
		return
	}
	if at.phase == holding && !c.long {
		add(fmt.Sprintf("a member renews %d for longer", a), func(n *world) string {
			n.columns[i].long = true
			n.attempts[a].long = at.long || n.extended(a) >= modelMajority
			return ""
		})
	}
	if c.late[a] {
		add(fmt.Sprintf("a renewal of %d lands late", a), func(n *world) string {
			k := &n.columns[i]
			k.late[a], k.long = false, k.long && !m.setsLife
			return ""
		})
	}
}

// extended returns the number of members that keep the lock of a for the long life.
func (w *world) extended(a int) int {
	n := 0
	for _, c := range w.columns {
		if c.owner == uint8(a+1) && c.long {
			n++
		}
	}
	return n
}

// majorities returns the greatest fence of each majority of grants that a may have heard of.
func (w *world) majorities(a, need int) []uint8 {
	var greatest []uint8
	for set := range 1 << modelMembers {
		n, top := 0, uint8(0)
		for i, c := range w.columns {
			if set>>i&1 == 1 && c.mails[a] == landed {
				n++
				top = max(top, c.fences[a])
			}
		}
		if n >= need && !slices.Contains(greatest, top) {
			greatest = append(greatest, top)
		}
	}
	return greatest
}

// count returns the number of members whose mail with an attempt has come this far.
func (w *world) count(a int, m mail) int {
	n := 0
	for _, c := range w.columns {
		if c.mails[a] == m {
			n++
		}
	}
	return n
}

func (w *world) begun(a int) bool { return w.count(a, sent) < modelMembers }

func (m model) number(n *world, a int, first uint8) string {
	n.attempts[a].phase, n.attempts[a].last = raising, first+m.span-1
	for i := range n.columns {
		m.secure(n, a, i)
	}
	if m.noWriteBack {
		return m.win(n, a)
	}
	return ""
}

func (m model) secure(n *world, a, i int) {
	switch c := &n.columns[i]; {
	case c.mails[a] != landed:
	case c.fences[a] >= n.attempts[a].last:
		c.mails[a] = done
	default:
		c.mails[a] = raise
	}
}

func (m model) win(n *world, a int) string {
	first, before := n.attempts[a].last-m.span+1, n.top
	n.attempts[a].phase = holding
	for i := range n.columns {
		n.columns[i].late[a] = m.extends && !n.attempts[a].again
	}
	n.top = max(n.top, n.attempts[a].last)
	for o, other := range n.attempts {
		if o != a && other.believes() {
			return fmt.Sprintf("%d and %d hold at once", o, a)
		}
	}
	if first <= before {
		return fmt.Sprintf("fences go back: %d is granted after %d", first, before)
	}
	return ""
}

// ofMember returns the steps of one member, and of the mail between it and an attempt.
func (m model) ofMember(w world, a, i int, add adder) {
	c, at := w.columns[i], w.attempts[a]
	mine := c.owner == uint8(a+1)
	// Attempts are alike: it suffices that they begin in order.
	if c.mails[a] == sent && (c.owner == 0 || mine) && (a == 0 || w.begun(a-1) || w.attempts[a-1].again) {
		add(fmt.Sprintf("a member grants %d to %d", c.counter+1, a), func(n *world) string {
			n.columns[i].grant(a, m.attemptSets)
			n.clock = max(n.clock, c.counter+1)
			if at.phase == raising || at.phase == holding {
				m.secure(n, a, i)
			}
			return ""
		})
	}
	if c.mails[a] == raise && (mine || m.blind) {
		add(fmt.Sprintf("a member is raised to %d by %d", at.last, a), func(n *world) string {
			n.columns[i].raise(a, at.last, m.blind)
			n.clock = max(n.clock, at.last)
			return ""
		})
	}
	short := at.long && !c.long // the time of the short life is over
	if mine && (at.phase == ended || short || m.clockJumps) {
		add(fmt.Sprintf("a member frees the lock of %d", a), func(n *world) string {
			n.columns[i].owner, n.columns[i].long = 0, false
			return ""
		})
	}
	m.extend(w, a, i, add)
	if at.phase == holding && c.owner == 0 && c.mails[a] != sent && !m.clockJumps {
		add(fmt.Sprintf("%d wins back a vote", a), func(n *world) string {
			k := &n.columns[i]
			k.owner, k.counter, k.long = uint8(a+1), max(k.counter+1, at.last), at.long
			n.clock = max(n.clock, k.counter)
			return ""
		})
	}
}

func (c *column) grant(a int, setsLife bool) {
	c.owner = uint8(a + 1)
	c.long = c.long && !setsLife
	c.counter++
	c.mails[a], c.fences[a] = landed, c.counter
}

func (c *column) raise(a int, last uint8, blind bool) {
	c.mails[a] = done
	if blind {
		c.counter = last
		return
	}
	c.counter = max(c.counter, last)
}

// ofCrashes returns the crashes and restarts of members that lose their memory.
func (m model) ofCrashes(w world, i int, add adder) {
	c := w.columns[i]
	if !c.down && w.crashes < m.crashes {
		add("a member crashes and forgets all", func(n *world) string {
			n.crashes++
			n.columns[i].owner, n.columns[i].long, n.columns[i].counter, n.columns[i].down = 0, false, 0, true
			return ""
		})
	}
	if c.down && (!m.delayed || w.mayRestart(i)) {
		add("a member restarts", func(n *world) string {
			n.columns[i].down = false
			if m.clockCounter {
				n.columns[i].counter = n.clock
			}
			return ""
		})
	}
}

// mayRestart reports whether no attempt relies on a vote that member i has forgotten.
func (w *world) mayRestart(i int) bool {
	for a, at := range w.attempts {
		if at.phase == ended || w.columns[i].mails[a] == sent {
			continue
		}
		others := 0
		for _, c := range w.columns {
			if c.owner == uint8(a+1) {
				others++
			}
		}
		if at.phase != holding || others < modelMajority {
			return false
		}
	}
	return true
}

// check visits every state, the nearest first. It returns their number and the path to the first
// one that breaks a promise.
func (m model) check() (states int, trace []string) {
	type entry struct {
		world
		from int
		what string
	}
	var start world
	if m.uneven {
		start.columns[modelMembers-1].counter = 1
	}
	seen, all := map[world]bool{start: true}, []entry{{start, -1, ""}}
	for at := 0; at < len(all); at++ {
		for _, s := range m.next(all[at].world) {
			if s.broken != "" {
				trace = []string{s.what, s.broken}
				for i := at; all[i].from >= 0; i = all[i].from {
					trace = slices.Insert(trace, 0, all[i].what)
				}
				return len(all), trace
			}
			if !seen[s.world] {
				seen[s.world] = true
				all = append(all, entry{s.world, at, s.what})
			}
		}
	}
	return len(all), nil
}

// modelCase is a mutation of the protocol, and the promise that it breaks, if any.
type modelCase struct {
	name   string
	change func(*model)
	broken string
}

// The protocol keeps its promises in every order of events. Each of its parts is needed: without it
// a promise is broken.
func TestModel(t *testing.T) {
	search(t, []modelCase{
		{"as it is", func(m *model) {}, ""},
		{"with hand-offs", func(m *model) { m.refence, m.attempts = true, 2 }, ""},
		{"with late renewals", func(m *model) { m.extends, m.attempts = true, 2 }, ""},
		{"with a late renewal that sets a life", func(m *model) { m.extends, m.setsLife, m.attempts = true, true, 2 }, "hold at once"},
		{"with a late attempt that sets a life", func(m *model) { m.extends, m.attemptSets, m.refence, m.attempts = true, true, true, 2 }, "hold at once"},
		{"without the second round", func(m *model) { m.noWriteBack = true }, "fences go back"},
		{"with hand-offs and without the second round", func(m *model) { m.refence, m.noWriteBack = true, true }, "fences go back"},
		{"with less than a majority", func(m *model) { m.majority-- }, "hold at once"},
		{"with clocks that jump", func(m *model) { m.clockJumps = true }, "hold at once"},
		{"with a restart without memory within the TTL", func(m *model) { m.crashes, m.clockCounter = 1, true }, "hold at once"},
		{"with two restarts without memory after the TTL", func(m *model) { m.crashes, m.clockCounter, m.delayed, m.attempts = 2, true, true, 2 }, ""},
		{"with a restart of a member without a clock", func(m *model) { m.crashes, m.delayed = 1, true }, "fences go back"},
	})
}

// The same for the cases with the most states.
func TestLongModel(t *testing.T) {
	search(t, []modelCase{
		{"with spans of fences", func(m *model) { m.span = 2 }, ""},
		{"with late renewals and attempts", func(m *model) { m.extends, m.refence, m.attempts = true, true, 2 }, ""},
		{"with a second round that does not look at the owner", func(m *model) { m.blind, m.uneven = true, true }, "fences go back"},
		{"with a restart without memory after the TTL", func(m *model) { m.crashes, m.clockCounter, m.delayed = 1, true, true }, ""},
	})
}

func search(t *testing.T, cases []modelCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := model{attempts: modelAttempts, span: 1, majority: modelMajority}
			c.change(&m)
			states, trace := m.check()
			t.Logf("%d states\n\t%s", states, strings.Join(trace, "\n\t"))
			switch {
			case c.broken == "" && trace != nil:
				t.Errorf("a promise is broken")
			case c.broken != "" && trace == nil:
				t.Errorf("nothing is found in %d states; want: %s", states, c.broken)
			case c.broken != "" && !strings.Contains(trace[len(trace)-1], c.broken):
				t.Errorf("found %q, want %q", trace[len(trace)-1], c.broken)
			case states < 50:
				t.Errorf("only %d states", states)
			}
		})
	}
}
