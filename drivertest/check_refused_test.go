package drivertest

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
)

// denies answers to one kind of call with err while the user may do nothing.
func denies(call string, err error) func(*lab, *patched) {
	return func(_ *lab, p *patched) {
		others := p.denied
		p.denied = func(c string) error {
			if c == call {
				return err
			}
			return others(c)
		}
	}
}

var refusedMutants = []mutant{{
	"a refused login is taken for a wrong request", "refused/acquire", denies("Acquire", driver.ErrInvalid),
}, {
	"once refused, an Owner can't be released", "refused/acquire",
	func(_ *lab, p *patched) {
		others := p.denied
		p.denied = func(call string) error {
			p.release = func(context.Context, driver.Hold) error { return driver.ErrInvalid }
			return others(call)
		}
	},
}, {
	"a watch that is refused ends the wait", "refused/wait", denies("Watch", driver.ErrUnsupported),
}, {
	"a place that is given up in vain stays", "refused/queue", denies("Release", driver.ErrInvalid),
}, {
	"a release of a place that is refused counts as done", "refused/queue",
	func(_ *lab, p *patched) {
		done, release := false, p.release
		others := p.denied
		p.denied = func(call string) error {
			if call == "Release" {
				done = true
				return nil
			}
			return others(call)
		}
		p.release = func(ctx context.Context, h driver.Hold) error {
			if done {
				return driver.ErrLost
			}
			return release(ctx, h)
		}
	},
}, {
	"a hold is lost because its renewal is refused", "refused/renew", denies("Renew", driver.ErrLost),
}, {
	"a release that is refused is final", "refused/release", denies("Release", driver.ErrInvalid),
}, {
	"a release that is refused may have been done", "refused/release", denies("Release", errors.New("access denied")),
}, {
	"a release that was done is reported as refused", "refused/release",
	func(l *lab, p *patched) {
		recorded(l, p)
		others := p.denied
		p.denied = func(call string) error {
			l.locked(func() {
				for _, r := range l.owners {
					p.mem.Release(context.Background(), r.Hold)
				}
			})
			return others(call)
		}
	},
}, {
	"a hold whose release is refused is taken for lost", "refused/release", denies("Release", driver.ErrLost),
}}
