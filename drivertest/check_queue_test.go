package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/driver"
)

var queueMutants = []mutant{{
	"a place is passed by a try", "queue/no-passing", passing(func(r driver.Request) bool { return !r.Queue }),
}, {
	"the last to come is the first to get in", "queue/fifo", passing(func(r driver.Request) bool { return r.Queue }),
}, {
	"a place is passed by a reader", "queue/reader-behind-writer",
	besideOnRefusal(driver.Read, func(h driver.Hold) bool { return h.Mode == driver.Read }),
}, {
	"asking again sends one to the end", "queue/repeat-keeps-place",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Queue && p.holds(r.Name, r.Owner) == 0 {
			p.mem.Release(context.Background(), r.Hold)
		}
		return nil
	}),
}, {
	"places end at once", "queue/place-lives",
	placesLast(func(time.Duration) time.Duration { return time.Millisecond }),
}, {
	"places never end", "queue/place-ends", placesStay,
}, {
	"the place of a dead owner blocks those behind it", "queue/dead-place-lets-next-in", placesStay,
}, {
	"asking again does not prolong a place", "queue/repeat-restarts-place",
	attempts(func(p *patched, r *driver.Request) error {
		r.Queue = r.Queue && !p.waits(r.Name, r.Owner)
		return nil
	}),
}, {
	"Release does not leave the queue", "queue/release-leaves",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if p.waits(h.Name, h.Owner) {
				return nil
			}
			return release(ctx, h)
		}
	},
}, {
	"a place is renewed as if it were a hold", "queue/place-is-no-hold",
	eachRenewal(func(_ *lab, p *patched, h driver.Hold) error {
		if p.waits(h.Name, h.Owner) {
			return nil
		}
		return p.renewOne(h)
	}),
}, {
	"a free lock is kept for a dead first for as long as its place lasts", "queue/turn-ends",
	turnsLast,
}, {
	"each place of a dead client has its turn", "queue/dead-client",
	func(l *lab, p *patched) {
		alias := func(owner string) (other string) {
			l.locked(func() {
				if l.notes[owner] == "" {
					l.notes[owner] = driver.NewOwner()
				}
				other = l.notes[owner]
			})
			return other
		}
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Owner = alias(r.Owner)
			return p.mem.Acquire(ctx, r)
		}
		p.release = func(ctx context.Context, h driver.Hold) error {
			h.Owner = alias(h.Owner)
			return p.mem.Release(ctx, h)
		}
	},
}, {
	"dead readers have their turns one after the other", "queue/dead-together",
	attempts(func(_ *patched, r *driver.Request) error {
		if r.Queue && r.Mode == driver.Read {
			r.Mode = driver.Write
		}
		return nil
	}),
}, {
	"a release forgets all places but the last", "queue/shares",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if info, _ := p.mem.Inspect(ctx, h.Name); p.holds(h.Name, h.Owner) != 0 && len(info.Waiters) > 1 {
				for _, w := range info.Waiters[:len(info.Waiters)-1] {
					p.mem.Release(ctx, driver.Hold{Name: h.Name, Owner: w.Owner, Mode: w.Mode})
				}
			}
			return release(ctx, h)
		}
	},
}, {
	"a queue sends the holder away", "queue/holder-keeps-holding",
	attempts(func(p *patched, r *driver.Request) error {
		info, _ := p.mem.Inspect(context.Background(), r.Name)
		if p.holds(r.Name, r.Owner) != 0 && len(info.Waiters) > 0 {
			return &driver.HeldError{}
		}
		return nil
	}),
}, {
	"a refusal reports a minute more than a place lives", "queue/retry",
	retries(func(d time.Duration) time.Duration { return d + time.Minute }),
}, {
	"a writer that asks again goes behind the readers", "queue/writer-behind-readers",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Mode == driver.Write && p.waits(r.Name, r.Owner) {
			p.mem.Release(context.Background(), r.Hold)
		}
		return nil
	}),
}, {
	"the place of a dead reader blocks a writer", "queue/dead-reader", placesStay,
}, {
	"readers in the queue get in one by one", "queue/readers-behind-writer-share",
	attempts(func(p *patched, r *driver.Request) error {
		if r.Queue && p.holder(r.Name).Mode == driver.Read {
			return &driver.HeldError{}
		}
		return nil
	}),
}, {
	"a place is passed by a try for a permit", "queue/permits",
	passing(func(r driver.Request) bool { return r.Mode == driver.Counted && !r.Queue }),
}}

// passing lets some requests ignore the queue.
func passing(which func(driver.Request) bool) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if which(r) && (r.Mode == driver.Counted || p.holder(r.Name).Owner == "") {
				info, _ := p.mem.Inspect(ctx, r.Name)
				for _, w := range info.Waiters {
					p.mem.Release(ctx, driver.Hold{Name: r.Name, Owner: w.Owner, Mode: w.Mode})
				}
			}
			return acquire(ctx, r)
		}
	}
}

// turnsLast keeps a free lock for the first in the queue.
func turnsLast(_ *lab, p *patched) {
	acquire := p.acquire
	p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		info, _ := p.mem.Inspect(ctx, r.Name)
		if len(info.Holders) == 0 && len(info.Waiters) > 0 && info.Waiters[0].Owner != r.Owner {
			return driver.Grant{}, &driver.HeldError{}
		}
		return acquire(ctx, r)
	}
}

// placesStay keeps places for a day, also if a free lock waits for them.
func placesStay(l *lab, p *patched) {
	turnsLast(l, p)
	placesLast(func(time.Duration) time.Duration { return 24 * time.Hour })(l, p)
}

// placesLast gives places another life than holds.
func placesLast(life func(time.Duration) time.Duration) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			try := r
			try.Queue = false // no later attempt shortens a place
			g, err := acquire(ctx, try)
			if errors.Is(err, driver.ErrHeld) && r.Queue {
				r.TTL = life(r.TTL)
				return acquire(ctx, r)
			}
			return g, err
		}
	}
}

// waits reports whether owner is in the queue for name.
func (p *patched) waits(name, owner string) bool {
	info, _ := p.mem.Inspect(context.Background(), name)
	for _, w := range info.Waiters {
		if w.Owner == owner {
			return true
		}
	}
	return false
}
