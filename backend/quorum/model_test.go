package quorum_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The protocol as a state machine, of which every reachable state is looked at. It
// mirrors the code as follows.
//
//   - An attempt is one Owner. It asks all members (acquire.go, ask); a request lands at
//     any later moment or never, also when the attempt has long been given up, and so
//     does the answer. A refusal has no effect, so it is one that has not landed yet:
//     that covers the favourite of a split vote, who asks again (split.go).
//   - When some majority of those that granted has been heard of, whichever answers came
//     first, the fences are numbered from the greatest of theirs on (number), and members
//     whose counter is below the last are asked to raise it (secure). That request, too,
//     lands at any moment; the member looks at the Owner.
//   - When a majority is raised the attempt holds (won), and believes so until its
//     deadline, or until it releases. It is given up at any moment before.
//   - What is done is released in any order, at any moment or never (clean), or expires.
//     A member lets a hold expire only after its Owner's deadline: members are asked for
//     longer (drift), and count from later on. So the end of belief, whatever it is, comes
//     before either. Renewal postpones the deadline; here it just has not come yet.
//   - With extends, a life is short or long. A holder sends a renewal for the short life, and
//     then one for the long life, each of which lands at any moment or never. When a majority
//     has done the latter it trusts the long life, and members may end short ones (extend).
//     A request for less than is left, also an attempt that lands late, shortens nothing.
//   - A member that crashes with its memory is one that messages do not reach for a
//     while, which any message may do. One that crashes without is empty. A holder may
//     win back its vote there (renew.go, winBack).
//   - A delayed restart is one after all TTLs that had begun before it: whoever counted
//     the member's vote has come to its deadline, or was renewed by a majority of others.
const (
	modelMembers  = 3
	modelAttempts = 3
	modelMajority = modelMembers/2 + 1
)

// model is the protocol, and what is wrong with it.
type model struct {
	attempts     int   // at most modelAttempts
	span         uint8 // fences that each attempt asks for
	refence      bool  // holders ask again, once, as for a hand-off or a downgrade
	extends      bool  // holders renew for longer, and their earlier renewals land late
	setsLife     bool  // a renewal ends what was asked for longer
	attemptSets  bool  // an attempt does
	majority     int
	noWriteBack  bool  // one round only
	blind        bool  // the member writes the counter back whoever holds
	uneven       bool  // a member's counter is ahead, as an attempt that failed leaves it
	clockJumps   bool  // members let holds expire at any moment
	crashes      uint8 // of members, which forget all
	delayed      bool  // … and restart late
	clockCounter bool  // … with a counter that goes on from a clock
}

type phase uint8

const (
	voting phase = iota
	raising
	holding
	ended // released, given up, or at its deadline: members may let go
)

type mail uint8

const (
	sent   mail = iota // the request is on its way
	landed             // the member has granted; the attempt knows when it likes
	raise              // the request to raise is on its way
	done               // the member has raised, or nothing that comes matters any more
)

// world is one state. It is comparable; column is all that concerns one member, so that
// worlds that differ in the members' order can be made the same.
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
	again bool // it had held, and asks again
	long  bool // a majority has renewed it for the long life
}

func (a attempt) believes() bool { return a.phase == holding || a.again && a.phase != ended }

// number is the column as one, so that columns have an order.
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

// step is a possible next state. broken says which promise it breaks.
type step struct {
	world
	what   string
	broken string
}

// next are all steps from w.
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

// forget drops what makes no difference any more, so that there are fewer states.
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

// ofAttempt are the steps that a client makes by itself.
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

// extend are the steps of renewals: an early one for the short life, and one for the long.
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

// extended is how many members keep the lock of a for the long life.
func (w *world) extended(a int) int {
	n := 0
	for _, c := range w.columns {
		if c.owner == uint8(a+1) && c.long {
			n++
		}
	}
	return n
}

// majorities are the greatest fences of the sets of members whose grants a may have
// heard of when they are as many as it needs.
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

// count is how many members' mail with an attempt has come this far.
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

// ofMember are the steps of one member, and of the mail between it and an attempt.
func (m model) ofMember(w world, a, i int, add adder) {
	c, at := w.columns[i], w.attempts[a]
	mine := c.owner == uint8(a+1)
	// Attempts are alike: it is enough to look at those that begin in their order.
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

// ofCrashes are the ends and beginnings of members that keep nothing in mind.
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

// mayRestart reports whether nobody relies on a vote that member i has forgotten.
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

// check looks at every state, the nearest first, and returns how many there are and the
// way to the first that breaks a promise.
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

// modelCase is a change of the protocol, and which promise that breaks, if any.
type modelCase struct {
	name   string
	change func(*model)
	broken string
}

// The protocol keeps its promises in every order of events, and each of its parts is
// needed: without it a way is found that breaks one.
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
