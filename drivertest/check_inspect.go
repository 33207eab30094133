package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

var inspectChecks = []promise{{name: "inspect/holder", every: true,
	text: "Inspect shows the holder: owner, mode, fence, times and Meta.",
	run: func(s *scene) {
		r := s.request()
		r.Meta = map[string]string{"host": "db 1", "pid": "42", "note": "it's \"odd\" {x}: é\n🔒", "empty": ""}
		since := time.Now()
		g := s.a.mustAcquire(r, "a free lock is granted")
		info := s.b.inspect(r.Name)
		s.portrays(info, r, g, time.Since(since))
	},
}, {name: "inspect/free", every: true,
	text: "A free lock has no holders, before it was held and after.",
	run: func(s *scene) {
		r := s.request()
		s.vacant(s.b.inspect(r.Name), "before it was held")
		s.a.hold(r)
		s.a.free(r.Hold, nil, "the holder releases")
		s.vacant(s.b.inspect(r.Name), "after its release")
		s.a.mustAcquire(s.rival(r), "Inspect takes nothing")
	},
}, {name: "inspect/expired",
	text: "A hold that has ended is not shown.",
	run: func(s *scene) {
		r, _ := s.expired()
		s.vacant(s.b.inspect(r.Name), "after the holder's TTL")
		s.lists(r.Name)
	},
}, {name: "inspect/readers", needs: readWrite,
	text: "All readers are shown.",
	run: func(s *scene) {
		one := s.a.hold(s.reader())
		two := s.b.holdBy(s.reader(), "readers share")
		s.shows(s.b.inspect(one.Name).Holders, false, one, two)
	},
}, {name: "inspect/permits", needs: semaphore,
	text: "All holders of permits are shown, and the limit.",
	run: func(s *scene) {
		one := s.a.holdBy(s.permit(3), "permits up to the limit")
		two := s.b.holdBy(s.permit(3), "permits up to the limit")
		info := s.b.inspect(one.Name)
		s.shows(info.Holders, false, one, two)
		s.want(s.over() || info.Limit == 3, "Inspect reports the limit: got %d, want 3", info.Limit)
	},
}, {name: "inspect/downgraded", needs: downgrades,
	text: "A downgraded hold is shown as what it is now.",
	run: func(s *scene) {
		w := s.a.hold(s.writer())
		s.a.mustAcquire(asReader(w), "a writer can become a reader")
		s.shows(s.b.inspect(w.Name).Holders, false, asReader(w))
	},
}, {name: "inspect/waiters", needs: queueing,
	text: "Waiters in the queue are shown in their order, as far as they are known.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		waiters := s.queueUp(r, s.b, s.a, s.b)
		info := s.a.inspect(r.Name)
		s.want(s.over() || info.WaiterCount == len(waiters) || info.WaiterCount < 0, "WaiterCount is the length of the queue: got %d, want %d", info.WaiterCount, len(waiters))
		if len(info.Waiters) > 0 {
			s.shows(info.Waiters, true, waiters...)
		}
		s.shows(info.Holders, false, r)
	},
}, {name: "inspect/list", every: true,
	text: "List yields each name that is held or waited for once, and no free one.",
	run: func(s *scene) {
		var names []string
		s.lists(s.prefix) // a backend without List is let off before anything is taken
		for i := range 60 {
			r := s.a.hold(s.requestFor(fmt.Sprint("name ", i)))
			if i%4 == 0 {
				s.a.free(r.Hold, nil, "the holder releases")
				continue
			}
			names = append(names, r.Name)
		}
		s.lists(s.prefix, names...)
	},
}, {name: "inspect/list-waited", needs: queueing,
	text: "List yields a name that is only waited for.",
	run: func(s *scene) {
		r := s.a.hold(s.request())
		s.queueUp(r, s.b)
		s.a.free(r.Hold, nil, "the holder releases")
		s.lists(s.prefix, r.Name)
	},
}, {name: "inspect/list-prefix",
	text: "A prefix is taken as it is: no character of it is a wildcard or folded.",
	run: func(s *scene) {
		var names []string
		s.lists(s.prefix)
		for _, n := range []string{"a_b", "axb", "a%b", "aXXb", "a*b", "a?b", "a[bc]d", "abd", "A_B", `a\b`, `a\\b`, "a", "é", "É", "{a}", "a'b"} {
			r := s.requestFor(n)
			if s.refusal(r.Name) {
				continue
			}
			s.a.hold(r)
			names = append(names, r.Name)
		}
		for _, prefix := range append(names, s.prefix, s.prefix+"none") {
			s.lists(prefix, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, prefix) })...)
		}
	},
}, {name: "inspect/list-stops",
	text: "List ends when yield returns false.",
	run: func(s *scene) {
		s.lists(s.prefix)
		for i := range 5 {
			s.a.hold(s.requestFor(fmt.Sprint(i)))
		}
		calls := 0
		s.b.list(s.prefix, func(string) bool { calls++; return calls < 2 })
		s.want(s.over() || calls == 2, "List ends when yield returns false: it was called %d times, want 2", calls)
	},
}}

// portrays wants info to describe r's hold.
func (s *scene) portrays(info driver.Info, r driver.Request, g driver.Grant, age time.Duration) {
	s.shows(info.Holders, false, r)
	if s.over() {
		return
	}
	h := info.Holders[0]
	s.want(info.Mode.SameKind(r.Mode), "Inspect reports the kind of lock: got %v", info.Mode)
	s.want(h.Fence == 0 || h.Fence == g.Fence, "Inspect reports the first fence of the grant: got %d, granted %d", h.Fence, g.Fence)
	s.want(h.Held <= age+time.Second, "Inspect reports how long it has been held: got %v, want at most %v", h.Held, age)
	s.want(h.Left <= r.TTL+r.TTL/10 || s.caps.Session, "Inspect reports how long it holds on: got %v of a TTL of %v", h.Left, r.TTL)
	s.want(h.Left < 0 || h.Left >= r.TTL-r.TTL/10-age || s.caps.Session, "Inspect reports how long it holds on: got %v of a TTL of %v", h.Left, r.TTL)
	s.want(maps.Equal(h.Meta, r.Meta), "Inspect reports the Meta that was given: got %q, want %q", h.Meta, r.Meta)
}

// shows checks that the holders, or waiters, belong to the requests.
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
	s.want(s.over() || slices.Equal(got, wanted), "Inspect reports each owner and mode: got %q, want %q", got, wanted)
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
	if i, ok := optional[driver.Inspector](c); ok {
		defer c.call("List")()
		began := time.Now()
		c.wantClaimed(c.late(began, i.List(c.ctx, prefix, yield)), "List")
	}
}

var nameChecks = []promise{
	namesApart("names/case",
		"Names that differ in case are different locks.",
		"job", "Job", "JOB", "straße", "STRASSE", "strasse", "ιος", "ΙΟΣ", "ιοσ", "i", "I", "ı", "İ"),
	namesApart("names/accents",
		"Names that differ in accents, width or composition are different locks.",
		"resume", "résumé", "re\u0301sume\u0301", "ｊｏｂ", "job", "ﬁt", "fit", "日本", "日夲", "🔒", "🔓", "\ufffd"),
	namesApart("names/spaces",
		"Spaces matter, also at both ends.",
		"job", "job ", "job  ", " job", "job\t", "job\n", "job\r\n", "j ob", "j  ob", "job\u00a0", "job\u200b", "j\nob", "j\x01ob", "j\x7fob"),
	namesApart("names/punctuation",
		"No character has a meaning in a name.",
		"a/b", "a//b", "a/./b", "a/c/../b", "/a/b", "a/b/", "a\\b", "a\\\\b", "a'b", "a''b", `a"b`, "a`b",
		"{a}b", "a{b}", "{a}{b}", "{}", "a}b", "a%b", "a%2Fb", "a%25b", "a_b", "a*b", "a?b", "a[b]", "a[^b]",
		"a:b", "a::b", "a;b", "a--b", "a#b", "a&b", "a+b", "a b", "a,b", "a|b", "a@b", "a$1b", "a${b}", "a!b", "a~b", "a=b", "<a>", ".", ".."),
	namesApart("names/numbers",
		"Names that mean the same number are different locks.",
		"1", "01", "1.0", "1e0", "+1", "-1", "0x1", "0", "-0", "true", "null", "NaN"),
	namesApart("names/prefixes",
		"A name that begins or ends with another one is a different lock.",
		"job", "jobs", "job:", "job:1", "job:10", "job/1", "job-0000000001", "job:fence", "job:token", "job:queue", "job:lock",
		"job:timeout", "job:meta", "{job}:timeout", "{job}:fence", "{job}", "jo", "myjob"),
	{name: "names/long",
		text: "Names of a kilobyte count to their last byte.",
		run: func(s *scene) {
			long := 1023 - len(s.prefix)
			x, e := strings.Repeat("x", long), strings.Repeat("é", long/2)
			s.apart(x+"y", x+"z", "y"+x, "z"+x, x, x[:900], x[:512], x[:256], x[:255], x[:64], e+"a", e+"b", e, e[:64])
		},
	}, {name: "names/every-mode", every: true,
		text: "Odd names work in every mode.",
		run: func(s *scene) {
			s.apart(`o'dd "name" {with} \all/ of %it_*?[a]`, `o'dd "name" {with} \all/ of %it_*?[b]`, "odd\nname ", strings.Repeat("long ", 200))
		},
	}, {name: "names/start",
		text: "A name is a lock of its own, no matter how it begins.",
		run: func(s *scene) {
			var names []string
			for _, lead := range []string{"", " ", "/", "\t", "-", "{", "{}", "'", "%", "*", ".", "#", "é"} {
				names = append(names, lead+s.prefix)
			}
			s.apartAs(names)
		},
	}, {name: "names/long-error", every: true,
		text: "An error quotes the beginning of a long name only.",
		run: func(s *scene) {
			long := s.requestFor(strings.Repeat("long ", 20_000))
			ended, cancel := context.WithCancel(s.ctx)
			cancel()
			s.a.shortErrors(s.ctx, long)
			s.b.shortErrors(ended, s.rival(long))
			s.b.shortErrors(s.ctx, s.rival(long))
			for _, other := range s.modes() {
				r := s.rival(long)
				r.Mode, r.Limit = other, long.Limit+1
				s.b.shortErrors(s.ctx, r)
			}
		},
	}, {name: "names/refused", every: true, needs: need{refuses: true},
		text: "A name that the store can't have is refused with ErrInvalid, before anything is taken, and no release of it succeeds.",
		run: func(s *scene) {
			var refused []string
			for _, end := range []string{"{", "}", "{}", "a{b", "a}b", "{}a", "a{}{b}", "}{", "{a}:timeout", "\n", " ", "'", "é", strings.Repeat("x", 900)} {
				if name := s.prefix + end; s.Refuses(name) {
					refused = append(refused, name)
				}
			}
			if len(refused) == 0 {
				s.fail(ErrNotClaimed)
			}
			for _, name := range refused {
				s.named(name, func() { s.refusedName(name) })
			}
		},
	}}

// namesApart is the promise that these are names of different locks.
func namesApart(name, text string, names ...string) promise {
	return promise{name: name, text: text, run: func(s *scene) { s.apart(names...) }}
}

// refusal: the store can't have this name.
func (s *scene) refusal(name string) bool { return s.Refuses != nil && s.Refuses(name) }

// refusedName wants every call to refuse a name.
func (s *scene) refusedName(name string) {
	const rule = "a name that the store can't have is refused"
	r := s.request()
	r.Name = name
	s.a.fails(r, driver.ErrInvalid, rule)
	good := s.a.hold(s.requestFor("good"))
	if errs := s.a.renewAll([]driver.Hold{good.Hold, r.Hold}, rule); len(errs) == 2 {
		s.want(errs[0] == nil, "a refused name does not hurt other holds: Renew answered %w", answer(errs[0]))
		s.want(errors.Is(errs[1], driver.ErrInvalid), "%s: Renew answered %w; want ErrInvalid", rule, answer(errs[1]))
	}
	s.a.free(good.Hold, nil, "a release ends the hold")
	if s.over() {
		return
	}
	s.want(s.a.Release(s.ctx, r.Hold) != nil, "%s: Release answered success", rule)
	s.a.eachOptional(s.ctx, r, func(call string, err error) {
		refused := errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrSkip)
		s.want(refused || call != "Watch" && call != "Inspect", "%s: %s answered %w; want ErrInvalid", rule, call, answer(err))
	})
}

// longestError is more than an error needs to say, and much less than a long name.
const longestError = 4096

// shortErrors makes each call about r, and checks that errors are short.
func (c *conn) shortErrors(ctx context.Context, r driver.Request) {
	if c.over() {
		return
	}
	other := r
	other.Hold = stranger(r)
	c.remember(r.Hold)
	failed := func(call string, err error) {
		c.want(err == nil || len(err.Error()) <= longestError,
			"an error quotes the beginning of a long name only: the one of %s on connection %s has %d bytes, the name %d", call, c.label, len(fmt.Sprint(err)), len(r.Name))
	}
	defer c.call("a call with a long name")()
	_, err := c.Acquire(ctx, r)
	failed("Acquire", err)
	for _, err := range c.Renew(ctx, []driver.Hold{other.Hold}) {
		failed("Renew", err)
	}
	failed("Release", c.Release(ctx, other.Hold))
	c.eachOptional(ctx, other, failed)
}

// apart wants names to be different locks: all can be held at once, as far as Harness.Holds
// allows, and each is held by its own holder only.
func (s *scene) apart(names ...string) {
	full := make([]string, len(names))
	for i, n := range names {
		full[i] = s.prefix + n
	}
	s.apartAs(full)
}

func (s *scene) apartAs(names []string) {
	names = slices.DeleteFunc(slices.Clone(names), s.refusal)
	for len(names) > 0 && !s.over() {
		n := s.atOnce(len(names))
		s.apartFrom(names[:n], names[n:])
		names = names[n:]
	}
}

// apartFrom holds some names at once, and wants the others to be free meanwhile.
func (s *scene) apartFrom(names, others []string) {
	held := make([]driver.Request, len(names))
	for i, name := range names {
		held[i] = s.request()
		held[i].Name = name
		s.named(name, func() { s.a.mustAcquire(held[i], "names that differ are different locks") })
	}
	for _, r := range held {
		s.named(r.Name, func() { s.b.refused(s.rival(r), "a name is one lock") })
	}
	for _, name := range others {
		r := s.request()
		r.Name = name
		s.named(name, func() {
			s.b.mustAcquire(r, "names that differ are different locks")
			s.b.free(r.Hold, nil, "the holder releases")
		})
	}
	for _, r := range held {
		s.named(r.Name, func() { s.a.free(r.Hold, nil, "a release ends the hold of its name only") })
	}
}

// named runs f, and adds the name to its error.
func (s *scene) named(name string, f func()) {
	if s.over() {
		return
	}
	if f(); s.over() {
		s.about(name)
	}
}
