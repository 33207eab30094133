package drivertest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
)

// renamed stores names as something else.
func renamed(store func(string) string) func(*lab, *patched) {
	return renamedIn(driver.AllModes, store)
}

// renamedIn is renamed for some modes.
func renamedIn(modes driver.ModeSet, store func(string) string) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		stored := func(h driver.Hold) driver.Hold {
			if modes.Has(h.Mode) {
				h.Name = store(h.Name)
			}
			return h
		}
		acquire, release := p.acquire, p.release
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Hold = stored(r.Hold)
			return acquire(ctx, r)
		}
		eachRenewal(func(_ *lab, p *patched, h driver.Hold) error { return p.renewOne(stored(h)) })(nil, p)
		p.release = func(ctx context.Context, h driver.Hold) error { return release(ctx, stored(h)) }
	}
}

// listed replaces List's match of a prefix.
func listed(match func(name, prefix string) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		p.list = func(ctx context.Context, prefix string, yield func(string) bool) error {
			return p.mem.List(ctx, "", func(name string) bool { return !match(name, prefix) || yield(name) })
		}
	}
}

// like returns the pattern of a SQL LIKE or of a glob.
func like(prefix string, wild ...string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.NewReplacer(wild...).Replace(regexp.QuoteMeta(prefix)))
}

var accents = strings.NewReplacer("é", "e", "\u0301", "")

var nameMutants = []mutant{{
	"names folded to lower case", "names/case", renamed(strings.ToLower),
}, {
	"accents folded", "names/accents", renamed(accents.Replace),
}, {
	"trailing spaces dropped", "names/spaces", renamed(func(n string) string { return strings.TrimRight(n, " ") }),
}, {
	"names trimmed", "names/start", renamed(strings.TrimSpace),
}, {
	"names truncated at 255 bytes", "names/long", renamed(func(n string) string { return n[:min(len(n), 255)] }),
}, {
	"names truncated at 1000 bytes", "names/long", renamed(func(n string) string { return n[:min(len(n), 1000)] }),
}, {
	"names taken for paths", "names/punctuation", renamed(path.Clean),
}, {
	"names read as numbers", "names/numbers",
	renamed(func(n string) string { return regexp.MustCompile(` 0+(\d)$`).ReplaceAllString(n, " $1") }),
}, {
	"characters not allowed become underscores", "names/punctuation",
	renamed(func(n string) string { return regexp.MustCompile(`[^\w /]`).ReplaceAllString(n, "_") }),
}, {
	"a colon begins a comment", "names/prefixes", renamed(func(n string) string { before, _, _ := strings.Cut(n, ":"); return before }),
}, {
	"errors quote all of a name", "names/long-error", func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if err := release(ctx, h); err != nil {
				return fmt.Errorf("release %q: %w", h.Name, err)
			}
			return nil
		}
	},
}, {
	"names that can't be are taken", "names/refused", pickyBut(func(p, plain *patched) { p.acquire = plain.acquire }),
}, {
	"names that can't be are renewed", "names/refused", pickyBut(func(p, plain *patched) { p.renew = plain.renew }),
}, {
	"one name that can't be spoils a batch", "names/refused", pickyBut(func(p, plain *patched) {
		renew := p.renew
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			errs := renew(ctx, holds)
			if slices.ContainsFunc(errs, driver.Final) {
				return slices.Repeat([]error{driver.ErrInvalid}, len(holds))
			}
			return errs
		}
	}),
}, {
	"names that can't be are released", "names/refused", pickyBut(func(p, plain *patched) {
		p.release = func(ctx context.Context, h driver.Hold) error {
			if err := plain.release(ctx, h); !errors.Is(err, driver.ErrLost) {
				return err
			}
			return nil
		}
	}),
}, {
	"names that can't be are watched", "names/refused", pickyBut(func(p, plain *patched) { p.watch = plain.watch }),
}, {
	"names that can't be are free", "names/refused", pickyBut(func(p, plain *patched) { p.inspect = plain.inspect }),
}, {
	"LIKE in List", "inspect/list-prefix",
	listed(func(n, p string) bool { return like(p, "%", ".*", "_", ".").MatchString(n) }),
}, {
	"glob in List", "inspect/list-prefix",
	listed(func(n, p string) bool { return like(p, `\*`, ".*", `\?`, ".", `\[`, "[", `\]`, "]").MatchString(n) }),
}, {
	"List folds case", "inspect/list-prefix",
	listed(func(n, p string) bool { return strings.HasPrefix(strings.ToLower(n), strings.ToLower(p)) }),
}, {
	"List yields twice", "inspect/list",
	func(_ *lab, p *patched) {
		p.list = func(ctx context.Context, prefix string, yield func(string) bool) error {
			return p.mem.List(ctx, prefix, func(name string) bool {
				yield(name)
				return yield(name)
			})
		}
	},
}, {
	"List does not stop", "inspect/list-stops",
	func(_ *lab, p *patched) {
		p.list = func(ctx context.Context, prefix string, yield func(string) bool) error {
			return p.mem.List(ctx, prefix, func(name string) bool { yield(name); return true })
		}
	},
}, {
	"List forgets those who only wait", "inspect/list-waited",
	func(_ *lab, p *patched) {
		p.list = func(ctx context.Context, prefix string, yield func(string) bool) error {
			var held []string
			err := p.mem.List(ctx, prefix, func(name string) bool { held = append(held, name); return true })
			for _, name := range held {
				if p.holder(name).Owner != "" && !yield(name) {
					break
				}
			}
			return err
		}
	},
}, {
	"Inspect reports no Meta", "inspect/holder", portrayed(func(i *driver.Info) {
		for n := range i.Holders {
			i.Holders[n].Meta = nil
		}
	}),
}, {
	"Inspect reports the TTL as time held", "inspect/holder", portrayed(func(i *driver.Info) {
		for n := range i.Holders {
			i.Holders[n].Held = i.Holders[n].Left
		}
	}),
}, {
	"Inspect reports the kind of the last lock of a name", "inspect/free", portrayed(func(i *driver.Info) {
		if i.Mode == 0 {
			i.Mode = driver.Exclusive
		}
	}),
}, {
	"Inspect reports one holder only", "inspect/permits", portrayed(func(i *driver.Info) { i.Holders = i.Holders[:min(1, len(i.Holders))] }),
}, {
	"Inspect shows the queue in another order", "inspect/waiters", portrayed(func(i *driver.Info) {
		if n := len(i.Waiters); n > 1 {
			i.Waiters[0], i.Waiters[n-1] = i.Waiters[n-1], i.Waiters[0]
		}
	}),
}, {
	"brackets in names of semaphores are patterns", "names/every-mode",
	renamedIn(driver.Modes(driver.Counted), func(n string) string { return regexp.MustCompile(`\[.*\]`).ReplaceAllString(n, "?") }),
}, {
	"Inspect shows holds that have ended", "inspect/expired",
	func(l *lab, p *patched) {
		recorded(l, p)
		inspect := p.inspect
		p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
			info, err := inspect(ctx, name)
			l.locked(func() {
				for _, r := range l.owners {
					if r.Name == name && len(info.Holders) == 0 {
						info.Holders = []driver.Holder{{Owner: r.Owner, Mode: r.Mode}}
					}
				}
			})
			return info, err
		}
	},
}, {
	"Inspect reports one reader only", "inspect/readers", portrayed(func(i *driver.Info) { i.Holders = i.Holders[:min(1, len(i.Holders))] }),
}, {
	"a downgraded hold is shown as Write", "inspect/downgraded", portrayed(func(i *driver.Info) {
		for n := range i.Holders {
			i.Holders[n].Mode = driver.Write
		}
	}),
}}

// picky refuses some names.
func picky(l *lab, p *patched) {
	l.locked(func() { l.picky = true })
	acquire, release, watch, inspect := p.acquire, p.release, p.watch, p.inspect
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		if l.refuses(r.Name) {
			return driver.Grant{}, driver.ErrInvalid
		}
		return acquire(ctx, r)
	}
	renew := p.renew
	p.renew = func(ctx context.Context, holds []driver.Hold) []error {
		errs := renew(ctx, holds)
		for i, h := range holds {
			if l.refuses(h.Name) {
				errs[i] = driver.ErrInvalid
			}
		}
		return errs
	}
	p.release = func(ctx context.Context, h driver.Hold) error {
		if l.refuses(h.Name) {
			return driver.ErrInvalid
		}
		return release(ctx, h)
	}
	p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
		if l.refuses(r.Name) {
			return driver.Watch{}, driver.ErrInvalid
		}
		return watch(ctx, r)
	}
	p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
		if l.refuses(name) {
			return driver.Info{}, driver.ErrInvalid
		}
		return inspect(ctx, name)
	}
}

// pickyBut is picky with some calls as they were before.
func pickyBut(alter func(p, plain *patched)) func(*lab, *patched) {
	return func(l *lab, p *patched) {
		plain := &patched{acquire: p.acquire, renew: p.renew, release: p.release, watch: p.watch, inspect: p.inspect}
		picky(l, p)
		alter(p, plain)
	}
}

// portrayed replaces the results of Inspect.
func portrayed(change func(*driver.Info)) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		inspect := p.inspect
		p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
			info, err := inspect(ctx, name)
			change(&info)
			return info, err
		}
	}
}
