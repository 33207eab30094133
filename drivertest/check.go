package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// ErrNotClaimed is what a check answers when the backend does not claim what the
// check is about, and properly refuses it where it could be asked for it.
var ErrNotClaimed = errors.New("drivertest: not claimed by this backend")

// Harness tells the suite how to reach one store. Only Open is needed.
type Harness struct {
	// Open makes a new, independent connection to the same store, as another
	// process would have. The suite closes what it opens. It is called from several
	// goroutines at once.
	Open func(ctx context.Context) (driver.Backend, error)

	// TTL is the TTL of holds whose end is waited for. 0: 300 ms, or Caps.MinTTL if
	// that is more.
	TTL time.Duration

	// Slack is how late an expiry or a signal may come on a loaded machine. It costs
	// time only where a backend is late. 0: 15 s, or TTL if that is more.
	Slack time.Duration

	// Timeout bounds one check, and each of its modes if Serial. 0: 60 s and 40 TTLs.
	Timeout time.Duration

	// Parallel is how many checks run at once under Run. 0: 8.
	Parallel int

	// Serial runs the modes of a check one after the other. Then a check has at most two
	// connections open at once; otherwise two for each mode.
	Serial bool

	// Holds is how many locks renew/big-batch, and a check of names, holds at once on one
	// connection, for a backend to which each costs a connection of a server. 0: up to 200.
	Holds int

	// Cut cuts one connection, made by Open, off from its store: from then on its
	// calls get no answer, as behind a broken network, until restore is called. nil:
	// what needs it answers ErrNotClaimed.
	Cut func(b driver.Backend) (restore func())

	// Refuses says which names the store can't have: the backend must answer them with
	// ErrInvalid, and nothing else. nil: none.
	Refuses func(name string) bool
}

// Check is one promise of a backend.
type Check struct {
	Name    string // subject and promise: "release/only-by-owner"
	Promise string // one sentence for people

	// Run tries the promise on the store. nil: kept. ErrNotClaimed: not made. Any
	// other error names what was broken and how, and wraps the backend's answer if that
	// was an error. It returns when ctx ends or the harness's Timeout has passed, also when the backend hangs, and leaves no holds
	// behind.
	Run func(ctx context.Context, h *Harness) error
}

// Checks lists all promises, subject by subject.
func Checks() []Check {
	var all []Check
	for _, subject := range [][]promise{
		capsChecks, exclusionChecks, againChecks, ttlChecks, renewChecks, releaseChecks,
		fenceChecks, sharedChecks, countedChecks, kindChecks, lineChecks, watchChecks,
		revokeChecks, fixedChecks, nameChecks, inspectChecks, ctxChecks, closeChecks, cutChecks,
	} {
		for _, p := range subject {
			all = append(all, Check{Name: p.name, Promise: p.text, Run: p.check})
		}
	}
	return all
}

// promise is how the suite writes a check down.
type promise struct {
	name, text string
	needs      need
	every      bool // run in every claimed mode, otherwise in one that excludes all others
	run        func(*scene)
}

// check is promise.play under a time limit that holds even if the backend hangs.
func (p promise) check(ctx context.Context, h *Harness) error {
	doing := new(activity)
	var cfg config
	err := bounded(ctx, cmp.Or(h.Timeout, openTime), doing, func(ctx context.Context) (err error) {
		cfg, err = h.settle(ctx, doing)
		return err
	})
	if err != nil {
		return err
	}
	if !p.needs.met(cfg.caps, h) {
		return ErrNotClaimed
	}
	modes := p.modes(cfg)
	limit := cfg.Timeout
	if cfg.Serial {
		limit *= time.Duration(len(modes))
	}
	return bounded(ctx, limit, doing, func(ctx context.Context) error { return p.play(ctx, cfg, doing, modes) })
}

// modes lists those that the promise is about.
func (p promise) modes(cfg config) []driver.Mode {
	modes := []driver.Mode{cfg.alone()}
	if p.every {
		modes = cfg.modes()
	}
	if p.needs.line {
		modes = slices.DeleteFunc(modes, func(m driver.Mode) bool { return cfg.caps.QueueingOf(m) == driver.QueueNever })
	}
	if p.needs.revocable {
		modes = slices.DeleteFunc(modes, func(m driver.Mode) bool { return !cfg.caps.Revocable.Has(m) })
	}
	return modes
}

// bounded runs f, and leaves it alone if it goes on long after its context has ended.
func bounded(ctx context.Context, limit time.Duration, doing *activity, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(2 * cleanupTime):
		return fmt.Errorf("every call returns when its context ends: %s did not", doing)
	}
}

// play runs the promise in these modes, at the same time unless the harness is Serial.
func (p promise) play(ctx context.Context, cfg config, doing *activity, modes []driver.Mode) error {
	errs := make([]error, len(modes))
	var wg sync.WaitGroup
	for i, mode := range modes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
			defer cancel()
			errs[i] = p.perform(ctx, cfg, doing, mode)
		})
		if cfg.Serial {
			wg.Wait()
		}
	}
	wg.Wait()
	if !p.every {
		return errs[0]
	}
	return summary(modes, errs)
}

// summary says what was broken in which modes, each thing once.
func summary(modes []driver.Mode, errs []error) error {
	var broken []error
	in := map[string][]string{}
	for i, err := range errs {
		if err == nil || errors.Is(err, ErrNotClaimed) {
			continue
		}
		if in[err.Error()] == nil {
			broken = append(broken, err)
		}
		in[err.Error()] = append(in[err.Error()], modes[i].String())
	}
	if len(broken) == 0 {
		return cmp.Or(errs...)
	}
	for i, err := range broken {
		broken[i] = fmt.Errorf("%s: %w", strings.Join(in[err.Error()], ", "), err)
	}
	return errors.Join(broken...)
}

// perform runs the promise once, and again with longer TTLs if the machine was too
// slow to tell.
func (p promise) perform(ctx context.Context, cfg config, doing *activity, mode driver.Mode) error {
	for range 4 {
		s := newScene(ctx, cfg, doing, mode)
		p.run(s)
		s.leave()
		if err := s.err(); !errors.Is(err, errSlow) {
			return err
		}
		cfg.TTL *= 3
	}
	return errSlow
}

// errSlow says that a hold may rightly have ended before the check came to look.
var errSlow = errors.New("drivertest: machine or store too slow for Harness.TTL; give a longer one")

// config is a Harness with its defaults filled in.
type config struct {
	Harness
	caps driver.Caps
}

// settle fills in the defaults, which depend on the backend's capabilities.
func (h *Harness) settle(ctx context.Context, doing *activity) (config, error) {
	if h.Open == nil {
		return config{}, errors.New("drivertest: Harness.Open is nil")
	}
	defer doing.begin("Open and Close")()
	b, err := h.Open(ctx)
	if err != nil {
		return config{}, fmt.Errorf("drivertest: open: %w", err)
	}
	c := config{Harness: *h, caps: b.Caps()}
	if err := b.Close(); err != nil {
		return config{}, fmt.Errorf("drivertest: close: %w", err)
	}
	if c.TTL == 0 {
		c.TTL = max(300*time.Millisecond, c.caps.MinTTL)
	}
	if c.Slack == 0 {
		c.Slack = max(15*time.Second, c.TTL)
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute + 40*c.TTL
	}
	return c, nil
}

// modes lists the claimed modes.
func (c config) modes() []driver.Mode {
	var modes []driver.Mode
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if c.caps.Modes.Has(m) {
			modes = append(modes, m)
		}
	}
	return modes
}

// alone is a claimed mode that excludes all others.
func (c config) alone() driver.Mode {
	if c.caps.Modes.Has(driver.Write) && !c.caps.Modes.Has(driver.Exclusive) {
		return driver.Write
	}
	return driver.Exclusive
}

// long is the TTL of holds that must not end by themselves.
func (c config) long() time.Duration {
	d := max(2*time.Minute, 2*c.Timeout)
	if c.caps.MaxTTL > 0 {
		d = min(d, c.caps.MaxTTL)
	}
	return d
}
