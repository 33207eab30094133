package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// promise is the definition of a check.
type promise struct {
	name, text string
	needs      need
	every      bool // run in every claimed mode, otherwise in one that excludes all others
	run        func(*scene)
}

// check is promise.play under a time limit that holds even if the backend hangs.
func (p promise) check(ctx context.Context, h *Harness) error {
	calls := new(activity)
	var cfg config
	err := bounded(ctx, cmp.Or(h.Timeout, openTime+h.extra), calls, func(ctx context.Context) (err error) {
		cfg, err = h.applyDefaults(ctx, calls)
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
	return bounded(ctx, limit, calls, func(ctx context.Context) error { return p.runModes(ctx, cfg, calls, modes) })
}

// modes returns the modes that the promise is about.
func (p promise) modes(cfg config) []driver.Mode {
	modes := []driver.Mode{cfg.alone()}
	if p.every {
		modes = cfg.modes()
	}
	if p.needs.queue {
		modes = slices.DeleteFunc(modes, func(m driver.Mode) bool { return cfg.caps.QueueingOf(m) == driver.QueueNever })
	}
	if p.needs.revocable {
		modes = slices.DeleteFunc(modes, func(m driver.Mode) bool { return !cfg.caps.Revocable.Has(m) })
	}
	return modes
}

// bounded runs f, and leaves it alone if it goes on long after its context has ended.
func bounded(ctx context.Context, limit time.Duration, calls *activity, f func(context.Context) error) error {
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
		return fmt.Errorf("every call returns when its context ends: %s did not", calls)
	}
}

// runModes runs the promise in these modes, at the same time unless the harness is Serial.
func (p promise) runModes(ctx context.Context, cfg config, calls *activity, modes []driver.Mode) error {
	errs := make([]error, len(modes))
	var wg wait.Group
	for i, mode := range modes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
			defer cancel()
			errs[i] = p.runMode(ctx, cfg, calls, mode)
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

// summary joins the errors of all modes, each once, with the modes.
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

// runMode runs the promise once, and again with longer TTLs if the machine was too
// slow to tell, or after a while if a call had no answer.
func (p promise) runMode(ctx context.Context, cfg config, calls *activity, mode driver.Mode) (err error) {
	for try := range 5 {
		s := newScene(ctx, cfg, calls, mode)
		p.run(s)
		s.cleanUp()
		switch err = s.err(); {
		case errors.Is(err, errNoAnswer) && ctx.Err() == nil:
			s.sleep(slowCall << try)
		case errors.Is(err, errSlow):
			cfg.TTL *= 3
		default:
			return err
		}
	}
	return err
}

// need lists the claims without which a promise does not apply.
type need struct {
	modes                                     driver.ModeSet
	fence, floor, downgrade, queue, revocable bool
	detached, observed, late                  bool
	session, ownTTL                           bool // ownTTL: each hold ends by its own TTL, not with a session
	cut, answers, withdraw, refuses           bool // Harness.Cut, LoseAnswers, Withdraw and Refuses are set
}

func (n need) met(c driver.Caps, h *Harness) bool {
	return c.Modes&n.modes == n.modes &&
		(c.Fence || !n.fence) && (c.Floor || !n.floor) && (c.Downgrade || !n.downgrade) &&
		(!n.queue || n.queueingIn(c)) && (!c.Session || !n.ownTTL) && (c.Session || !n.session) &&
		(c.Revocable != 0 || !n.revocable) && (c.Detached || !n.detached) && (c.Observed || !n.observed) && (c.Late > 0 || !n.late) &&
		(h.Cut != nil || !n.cut) && (h.LoseAnswers != nil || !n.answers) && (h.Withdraw != nil || !n.withdraw) && (h.Refuses != nil || !n.refuses)
}

// queueingIn: all the modes that a promise about the queue is about have one.
func (n need) queueingIn(c driver.Caps) bool {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if n.modes.Has(m) && c.QueueingOf(m) == driver.QueueNever {
			return false
		}
	}
	return c.Queueing != driver.QueueNever
}

var (
	semaphore  = need{modes: driver.Modes(driver.Counted)}
	readWrite  = need{modes: driver.Modes(driver.Write, driver.Read)}
	downgrades = need{modes: driver.Modes(driver.Write, driver.Read), downgrade: true}
	queueing   = need{queue: true}
	revocable  = need{revocable: true}
	detached   = need{detached: true}
	cut        = need{cut: true}
	cutShort   = need{cut: true, ownTTL: true}
	refusing   = need{withdraw: true}
)
