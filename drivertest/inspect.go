package drivertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

var inspectChecks = []promise{{
	name:  "inspect/holder",
	text:  "Inspect tells who holds: owner, mode, fence, times and what was given as Meta.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		r.Meta = map[string]string{"host": "db 1", "pid": "42", "note": "it's \"odd\" {x}: é\n🔒", "empty": ""}
		since := time.Now()
		g := s.a.take(r, "a free lock is granted")
		info := s.b.inspect(r.Name)
		s.portrays(info, r, g, time.Since(since))
	},
}, {
	name:  "inspect/free",
	text:  "A free lock has no holders, before it was held and after.",
	every: true,
	run: func(s *scene) {
		r := s.request()
		s.vacant(s.b.inspect(r.Name), "before it was held")
		s.a.take(r, "a free lock is granted")
		s.a.free(r.Hold, nil, "the holder releases")
		s.vacant(s.b.inspect(r.Name), "after its release")
		s.a.take(s.rival(r), "Inspect takes nothing")
	},
}, {
	name: "inspect/expired",
	text: "A hold that has ended is not shown.",
	run: func(s *scene) {
		r, _ := s.expired()
		s.vacant(s.b.inspect(r.Name), "after the holder's TTL")
		s.lists(r.Name)
	},
}, {
	name:  "inspect/readers",
	text:  "All readers are shown.",
	needs: readWrite,
	run: func(s *scene) {
		one, two := s.reader(), s.reader()
		s.a.take(one, "a free lock is granted")
		s.b.take(two, "readers share")
		s.shows(s.b.inspect(one.Name).Holders, false, one, two)
	},
}, {
	name:  "inspect/permits",
	text:  "All holders of permits are shown, and the limit.",
	needs: semaphore,
	run: func(s *scene) {
		one, two := s.permit(3), s.permit(3)
		s.a.take(one, "permits up to the limit")
		s.b.take(two, "permits up to the limit")
		info := s.b.inspect(one.Name)
		s.shows(info.Holders, false, one, two)
		s.want(s.over() || info.Limit == 3, "Inspect tells the limit: got %d, want 3", info.Limit)
	},
}, {
	name:  "inspect/downgraded",
	text:  "A downgraded hold is shown as what it is now.",
	needs: downgrades,
	run: func(s *scene) {
		w := s.writer()
		s.a.take(w, "a free lock is granted")
		s.a.take(asReader(w), "a writer can become a reader")
		s.shows(s.b.inspect(w.Name).Holders, false, asReader(w))
	},
}, {
	name:  "inspect/waiters",
	text:  "Those who stand in line are shown in their order, as far as they are known.",
	needs: line,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		waiters := s.queueUp(r, s.b, s.a, s.b)
		info := s.a.inspect(r.Name)
		s.want(s.over() || info.WaiterCount == len(waiters) || info.WaiterCount < 0, "WaiterCount is how many stand in line: got %d, want %d", info.WaiterCount, len(waiters))
		if len(info.Waiters) > 0 {
			s.shows(info.Waiters, true, waiters...)
		}
		s.shows(info.Holders, false, r)
	},
}, {
	name:  "inspect/list",
	text:  "List yields each name that is held or waited for once, and no free one.",
	every: true,
	run: func(s *scene) {
		var names []string
		s.lists(s.prefix) // a backend without List is let off before anything is taken
		for i := range 60 {
			r := s.requestFor(fmt.Sprint("name ", i))
			s.a.take(r, "a free lock is granted")
			if i%4 == 0 {
				s.a.free(r.Hold, nil, "the holder releases")
				continue
			}
			names = append(names, r.Name)
		}
		s.lists(s.prefix, names...)
	},
}, {
	name:  "inspect/list-waited",
	text:  "List yields a name that is only waited for.",
	needs: line,
	run: func(s *scene) {
		r := s.request()
		s.a.take(r, "a free lock is granted")
		s.queueUp(r, s.b)
		s.a.free(r.Hold, nil, "the holder releases")
		s.lists(s.prefix, r.Name)
	},
}, {
	name: "inspect/list-prefix",
	text: "A prefix is taken as it is: no character of it is a wildcard or folded.",
	run: func(s *scene) {
		var names []string
		s.lists(s.prefix)
		for _, n := range []string{"a_b", "axb", "a%b", "aXXb", "a*b", "a?b", "a[bc]d", "abd", "A_B", `a\b`, `a\\b`, "a", "é", "É", "{a}", "a'b"} {
			r := s.requestFor(n)
			if s.refusal(r.Name) {
				continue
			}
			s.a.take(r, "a free lock is granted")
			names = append(names, r.Name)
		}
		for _, prefix := range append(names, s.prefix, s.prefix+"none") {
			s.lists(prefix, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, prefix) })...)
		}
	},
}, {
	name: "inspect/list-stops",
	text: "List ends when yield returns false.",
	run: func(s *scene) {
		s.lists(s.prefix)
		for i := range 5 {
			s.a.take(s.requestFor(fmt.Sprint(i)), "a free lock is granted")
		}
		calls := 0
		s.b.list(s.prefix, func(string) bool { calls++; return calls < 2 })
		s.want(s.over() || calls == 2, "List ends when yield returns false: it was called %d times, want 2", calls)
	},
}}

// portrays wants info to tell of r's hold what is known of it.
func (s *scene) portrays(info driver.Info, r driver.Request, g driver.Grant, age time.Duration) {
	s.shows(info.Holders, false, r)
	if s.over() {
		return
	}
	h := info.Holders[0]
	s.want(info.Mode.SameKind(r.Mode), "Inspect tells the kind of lock: got %v", info.Mode)
	s.want(h.Fence == 0 || h.Fence == g.Fence, "Inspect tells the first fence of the grant: got %d, granted %d", h.Fence, g.Fence)
	s.want(h.Held <= age+time.Second, "Inspect tells how long it has been held: got %v, want at most %v", h.Held, age)
	s.want(h.Left <= r.TTL+r.TTL/10 || s.caps.Session, "Inspect tells how long it holds on: got %v of a TTL of %v", h.Left, r.TTL)
	s.want(h.Left < 0 || h.Left >= r.TTL-r.TTL/10-age || s.caps.Session, "Inspect tells how long it holds on: got %v of a TTL of %v", h.Left, r.TTL)
	s.want(maps.Equal(h.Meta, r.Meta), "Inspect tells the Meta that was given: got %q, want %q", h.Meta, r.Meta)
}

// shows wants the holders, or waiters, to be those of the requests.
func (s *scene) shows(holders []driver.Holder, inOrder bool, want ...driver.Request) {
	var got, wanted []string
	for _, h := range holders {
		got = append(got, h.Owner+" "+h.Mode.String())
	}
	for _, r := range want {
		wanted = append(wanted, r.Owner+" "+r.Mode.String())
	}
	if !inOrder {
		slices.Sort(got)
		slices.Sort(wanted)
	}
	s.want(s.over() || slices.Equal(got, wanted), "Inspect tells each owner and mode: got %q, want %q", got, wanted)
}

func (s *scene) vacant(info driver.Info, when string) {
	s.want(s.over() || len(info.Holders) == 0, "a free lock has no holders: got %d %s", len(info.Holders), when)
	s.want(s.over() || info.Mode == 0, "a free lock has no mode: got %v %s", info.Mode, when)
}

// lists wants List to yield exactly these names.
func (s *scene) lists(prefix string, want ...string) {
	var got []string
	s.b.list(prefix, func(name string) bool { got = append(got, name); return true })
	for _, name := range want {
		i := slices.Index(got, name)
		s.want(s.over() || i >= 0, "List yields each name with the prefix %q: %q is missing", prefix, name)
		if i >= 0 {
			got = slices.Delete(got, i, i+1)
		}
	}
	s.want(s.over() || len(got) == 0, "List yields names with the prefix %q only, each once and none that is free: it also yields %.300q", prefix, got)
}

// list calls List, or ends the scene if the backend can't.
func (c *conn) list(prefix string, yield func(string) bool) {
	if c.over() {
		return
	}
	defer c.call("List")()
	i, ok := c.Backend.(driver.Inspector)
	if !ok {
		c.fail(ErrNotClaimed)
		return
	}
	c.optional(i.List(c.ctx, prefix, yield), "List")
}
