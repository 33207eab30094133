package drivertest

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
)

var lifeMutants = []mutant{{
	"Acquire ignores its context", "ctx/acquire",
	func(_ *lab, p *patched) {
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			return p.mem.Acquire(context.WithoutCancel(ctx), r)
		}
	},
}, {
	"a network error counts as held", "ctx/acquire",
	func(_ *lab, p *patched) {
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := p.mem.Acquire(ctx, r)
			if err != nil {
				err = &driver.HeldError{}
			}
			return g, err
		}
	},
}, {
	"Renew ignores its context", "ctx/renew",
	func(_ *lab, p *patched) {
		p.renew = func(ctx context.Context, holds []driver.Hold) []error {
			return p.mem.Renew(context.WithoutCancel(ctx), holds)
		}
	},
}, {
	"Release ignores its context", "ctx/release",
	func(_ *lab, p *patched) {
		p.release = func(ctx context.Context, h driver.Hold) error {
			return p.mem.Release(context.WithoutCancel(ctx), h)
		}
	},
}, {
	"Inspect ignores its context", "ctx/inspect",
	func(_ *lab, p *patched) {
		p.inspect = func(ctx context.Context, name string) (driver.Info, error) {
			return p.mem.Inspect(context.WithoutCancel(ctx), name)
		}
	},
}, {
	"Watch ignores its context", "ctx/watch",
	func(_ *lab, p *patched) {
		p.watch = func(ctx context.Context, r driver.Request) (driver.Watch, error) {
			return p.mem.Watch(context.WithoutCancel(ctx), r)
		}
	},
}, {
	"closing one connection frees another's lock", "close/leaves-others",
	func(l *lab, p *patched) {
		recorded(l, p)
		p.close = func() error {
			l.locked(func() {
				for _, r := range l.owners {
					p.mem.Release(context.Background(), r.Hold)
				}
			})
			return p.mem.Close()
		}
	},
}, {
	"Close releases", "close/releases-nothing",
	func(l *lab, p *patched) {
		session(l, p)
		p.caps.Session, p.caps.Queueing = false, driver.QueueOnRequest
	},
}, {
	"a session outlives Close", "close/ends-session",
	func(_ *lab, p *patched) { p.caps.Session = true },
}, {
	"calls after Close go on", "close/calls-after",
	func(_ *lab, p *patched) { p.close = func() error { return nil } },
}, {
	"a second Close fails", "close/twice",
	func(_ *lab, p *patched) {
		first := true
		p.close = func() error {
			if !first {
				return errors.New("use of closed network connection")
			}
			first = false
			return p.mem.Close()
		}
	},
}, {
	"a goroutine per hold stays behind", "close/goroutines",
	func(l *lab, p *patched) {
		acquire := p.acquire
		p.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			go func() { <-l.end }()
			return acquire(ctx, r)
		}
	},
}, {
	"OnLost is called for a release", "lost/never-without-loss",
	func(l *lab, p *patched) {
		recorded(l, p)
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if r, ok := l.granted(h.Owner); ok && r.OnLost != nil {
				defer r.OnLost()
			}
			return release(ctx, h)
		}
	},
}, {
	"an attempt over a broken network says ErrClosed", "cut/acquire",
	func(_ *lab, p *patched) { p.broken = driver.ErrClosed },
}, {
	"a release over a broken network says ErrLost", "cut/release",
	func(_ *lab, p *patched) { p.broken = driver.ErrLost },
}, {
	"a release that did not arrive counts as done", "cut/release",
	func(_ *lab, p *patched) {
		release := p.release
		p.release = func(ctx context.Context, h driver.Hold) error {
			if p.unsent > 0 {
				return errors.Join(driver.ErrLost, release(ctx, h))
			}
			return release(ctx, h)
		}
	},
}, {
	"a release that tries again says ErrLost of what it ended", "unanswered/release",
	func(_ *lab, p *patched) {
		p.unheard = func(ctx context.Context, h driver.Hold, heard chan struct{}) error {
			<-heard
			return p.mem.Release(ctx, h)
		}
	},
}, {
	"a release without an answer is reported as unsent", "unanswered/release",
	func(_ *lab, p *patched) {
		p.unheard = func(context.Context, driver.Hold, chan struct{}) error {
			return driver.Unsent(errors.New("connection reset"))
		}
	},
}, {
	"a connection that broke stays broken", "cut/acquire",
	func(_ *lab, p *patched) { p.brittle = true },
}, {
	"an attempt that was sent is reported as unsent", "cut/unsent",
	func(_ *lab, p *patched) { p.lands, p.broken = true, driver.Unsent(errors.New("connection reset")) },
}, {
	"all connections share one network", "cut/others",
	eachRenewal(func(l *lab, p *patched, h driver.Hold) error {
		var down bool
		if l.locked(func() { down = l.cuts > 0 }); down {
			return errors.New("broken pipe")
		}
		return p.renewOne(h)
	}),
}, {
	"Close fails without a network", "cut/close",
	func(_ *lab, p *patched) {
		p.close = func() error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.isCut {
				return errors.New("broken pipe")
			}
			return p.mem.Close()
		}
	},
}}
