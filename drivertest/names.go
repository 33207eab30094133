package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

var nameChecks = []promise{{
	name: "names/case",
	text: "Names that differ in case are different locks.",
	run: func(s *scene) {
		s.apart("job", "Job", "JOB", "straße", "STRASSE", "strasse", "ιος", "ΙΟΣ", "ιοσ", "i", "I", "ı", "İ")
	},
}, {
	name: "names/accents",
	text: "Names that differ in accents, width or composition are different locks.",
	run: func(s *scene) {
		s.apart("resume", "résumé", "re\u0301sume\u0301", "ｊｏｂ", "job", "ﬁt", "fit", "日本", "日夲", "🔒", "🔓", "\ufffd")
	},
}, {
	name: "names/spaces",
	text: "Spaces matter, also at both ends.",
	run: func(s *scene) {
		s.apart("job", "job ", "job  ", " job", "job\t", "job\n", "job\r\n", "j ob", "j  ob", "job\u00a0", "job\u200b", "j\nob", "j\x01ob", "j\x7fob")
	},
}, {
	name: "names/punctuation",
	text: "No character has a meaning in a name.",
	run: func(s *scene) {
		s.apart("a/b", "a//b", "a/./b", "a/c/../b", "/a/b", "a/b/", "a\\b", "a\\\\b", "a'b", "a''b", `a"b`, "a`b",
			"{a}b", "a{b}", "{a}{b}", "{}", "a}b", "a%b", "a%2Fb", "a%25b", "a_b", "a*b", "a?b", "a[b]", "a[^b]",
			"a:b", "a::b", "a;b", "a--b", "a#b", "a&b", "a+b", "a b", "a,b", "a|b", "a@b", "a$1b", "a${b}", "a!b", "a~b", "a=b", "<a>", ".", "..")
	},
}, {
	name: "names/numbers",
	text: "Names that mean the same number are different locks.",
	run: func(s *scene) {
		s.apart("1", "01", "1.0", "1e0", "+1", "-1", "0x1", "0", "-0", "true", "null", "NaN")
	},
}, {
	name: "names/prefixes",
	text: "A name that begins or ends with another one is a different lock.",
	run: func(s *scene) {
		s.apart("job", "jobs", "job:", "job:1", "job:10", "job/1", "job-0000000001", "job:fence", "job:token", "job:queue", "job:lock",
			"job:timeout", "job:meta", "{job}:timeout", "{job}:fence", "{job}", "jo", "myjob")
	},
}, {
	name: "names/long",
	text: "Names of a kilobyte count to their last byte.",
	run: func(s *scene) {
		long := 1023 - len(s.prefix)
		x, e := strings.Repeat("x", long), strings.Repeat("é", long/2)
		s.apart(x+"y", x+"z", "y"+x, "z"+x, x, x[:900], x[:512], x[:256], x[:255], x[:64], e+"a", e+"b", e, e[:64])
	},
}, {
	name:  "names/every-mode",
	text:  "Odd names work in every mode.",
	every: true,
	run: func(s *scene) {
		s.apart(`o'dd "name" {with} \all/ of %it_*?[a]`, `o'dd "name" {with} \all/ of %it_*?[b]`, "odd\nname ", strings.Repeat("long ", 200))
	},
}, {
	name: "names/start",
	text: "Whatever a name begins with, it is a lock of its own.",
	run: func(s *scene) {
		var names []string
		for _, lead := range []string{"", " ", "/", "\t", "-", "{", "{}", "'", "%", "*", ".", "#", "é"} {
			names = append(names, lead+s.prefix)
		}
		s.apartAs(names)
	},
}, {
	name:  "names/long-error",
	text:  "An error quotes the beginning of a long name only.",
	every: true,
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
}, {
	name:  "names/refused",
	text:  "A name that the store can't have is refused with ErrInvalid by every call, before anything is taken.",
	needs: need{refuses: true},
	every: true,
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

// refusal: the store can't have this name.
func (s *scene) refusal(name string) bool { return s.Refuses != nil && s.Refuses(name) }

// refusedName wants every call to refuse a name.
func (s *scene) refusedName(name string) {
	const rule = "a name that the store can't have is refused"
	r := s.request()
	r.Name = name
	s.a.fails(r, driver.ErrInvalid, rule)
	good := s.requestFor("good")
	s.a.take(good, "a free lock is granted")
	if errs := s.a.renewAll([]driver.Hold{good.Hold, r.Hold}, rule); len(errs) == 2 {
		s.want(errs[0] == nil, "a refused name does not hurt other holds: Renew answered %s", answer(errs[0]))
		s.want(errors.Is(errs[1], driver.ErrInvalid), "%s: Renew answered %s; want ErrInvalid", rule, answer(errs[1]))
	}
	s.a.free(good.Hold, nil, "a release ends the hold")
	s.a.free(r.Hold, driver.ErrInvalid, rule)
	s.a.unwatchable(r, rule)
	s.a.unseen(name, rule)
}

// unwatchable must be refused, or left out.
func (c *conn) unwatchable(r driver.Request, rule string) {
	w, ok := c.Backend.(driver.Watcher)
	if !ok || c.over() {
		return
	}
	defer c.call("Watch")()
	watch, err := w.Watch(c.ctx, r)
	if err == nil {
		watch.Close()
	}
	c.want(errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrSkip), "%s: Watch on connection %s answered %s; want ErrInvalid", rule, c.label, answer(err))
}

// unseen must be refused, or left out.
func (c *conn) unseen(name, rule string) {
	i, ok := c.Backend.(driver.Inspector)
	if !ok || c.over() {
		return
	}
	defer c.call("Inspect")()
	_, err := i.Inspect(c.ctx, name)
	c.want(errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrSkip), "%s: Inspect on connection %s answered %s; want ErrInvalid", rule, c.label, answer(err))
}

// longestError is more than an error needs to say, and much less than a long name.
const longestError = 4096

// shortErrors makes each call about r, and wants those that fail to have a short error.
func (c *conn) shortErrors(ctx context.Context, r driver.Request) {
	if c.over() {
		return
	}
	stranger := r.Hold
	stranger.Owner = driver.NewOwner()
	c.remember(r.Hold)
	failed := func(call string, err error) {
		c.want(err == nil || len(err.Error()) <= longestError,
			"an error quotes the beginning of a long name only: that of %s on connection %s has %d bytes, the name %d", call, c.label, len(fmt.Sprint(err)), len(r.Name))
	}
	defer c.call("a call with a long name")()
	_, err := c.Acquire(ctx, r)
	failed("Acquire", err)
	for _, err := range c.Renew(ctx, []driver.Hold{stranger}) {
		failed("Renew", err)
	}
	failed("Release", c.Release(ctx, stranger))
	if w, ok := c.Backend.(driver.Watcher); ok {
		watch, err := w.Watch(ctx, r)
		if err == nil {
			watch.Close()
		}
		failed("Watch", err)
	}
	if i, ok := c.Backend.(driver.Inspector); ok {
		_, err := i.Inspect(ctx, r.Name)
		failed("Inspect", err)
	}
	if v, ok := c.Backend.(driver.Revoker); ok {
		failed("Revoke", v.Revoke(ctx, stranger))
	}
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
		s.named(name, func() { s.a.take(held[i], "names that differ are different locks") })
	}
	for _, r := range held {
		s.named(r.Name, func() { s.b.refused(s.rival(r), "a name is one lock") })
	}
	for _, name := range others {
		r := s.request()
		r.Name = name
		s.named(name, func() {
			s.b.take(r, "names that differ are different locks")
			s.b.free(r.Hold, nil, "the holder releases")
		})
	}
	for _, r := range held {
		s.named(r.Name, func() { s.a.free(r.Hold, nil, "a release ends the hold of its name only") })
	}
}

// named runs f and tells which name it was about if it fails.
func (s *scene) named(name string, f func()) {
	if s.over() {
		return
	}
	if f(); s.over() {
		s.about(name)
	}
}
