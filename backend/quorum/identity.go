package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/members"
	"github.com/distlock/distlock/internal/wait"
)

// One server under two addresses would have two votes. So members that say who they are (driver.Identifier)
// are compared before they have a vote: at Open, or when they are reached for the first time. All are asked
// at the same moment, since a server may be another one after a restart, or have another address.

// identify compares the members that answer. It returns ErrInvalid if two of them are one server. Each
// of those that do not answer gets a gate.
func (b *Backend) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longestTimeout)
	defer cancel()
	ids, errs := b.ask(ctx, func(*member) bool { return true })
	seen := map[string]string{} // the member's name
	for i, m := range b.members {
		switch m.identity = ids[i]; {
		case errors.Is(errs[i], driver.ErrSkip):
		case errs[i] != nil:
			m.gate = &gate{backend: m.Member, b: b, m: m}
			m.gate.Enter = m.gate.enter
			m.Backend = m.gate
		case seen[ids[i]] != "":
			return fmt.Errorf("%w: quorum: %s and %s are one server, which must not have two votes", driver.ErrInvalid, seen[ids[i]], m.Name)
		default:
			seen[ids[i]] = m.Name
		}
	}
	return nil
}

// ask asks members who they are, all at once.
func (b *Backend) ask(ctx context.Context, which func(*member) bool) (ids []string, errs []error) {
	ids, errs = make([]string, len(b.members)), make([]error, len(b.members))
	var calls wait.Group
	for i, m := range b.members {
		if which(m) {
			calls.Go(func() { ids[i], errs[i] = m.Identity(ctx) })
		}
	}
	calls.Wait()
	return ids, errs
}

// gate stands before a member that has not said yet who it is. It lets no call through until it has.
type gate struct {
	members.Guarded
	b       *Backend
	m       *member
	backend members.Member // of m, behind the gate
	open    atomic.Bool

	// guarded by Backend.admission
	refused error     // why it has no vote
	again   time.Time // when it is asked again
}

// pause is how long a member without a vote is not asked again.
const pause = time.Second

// enter returns the member once it has a vote.
func (g *gate) enter(ctx context.Context) (*members.Member, error) {
	if !g.open.Load() {
		if err := g.admit(ctx); err != nil {
			return nil, err
		}
	}
	return &g.backend, nil
}

func (g *gate) admit(ctx context.Context) error {
	if err := g.answers(ctx); err != nil { // one that is silent must not keep others waiting
		return err
	}
	select {
	case g.b.admission <- struct{}{}:
		defer func() { <-g.b.admission }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.open.Load() {
		return nil
	}
	if time.Now().Before(g.again) {
		return g.refused
	}
	id, err := g.backend.Identity(ctx)
	switch {
	case err == nil:
		if err := g.compare(ctx, id); err != nil {
			return err
		}
	case !errors.Is(err, driver.ErrSkip):
		return notTold(err)
	}
	g.open.Store(true)
	return nil
}

// answers returns nil if the member says who it is, whatever that is, or does not tell.
func (g *gate) answers(ctx context.Context) error {
	if _, err := g.backend.Identity(ctx); err != nil && !errors.Is(err, driver.ErrSkip) {
		return notTold(err)
	}
	return nil
}

// notTold is no fact about a lock.
func notTold(err error) error {
	return fmt.Errorf("it has no vote before it says which server it is: %v", err)
}

// compare returns an error if the member is the same server as another one that has a vote.
func (g *gate) compare(ctx context.Context, id string) error {
	timeout := longestTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end)/2) // one that is silent must not use up the call's time
	}
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ids, errs := g.b.ask(asking, func(m *member) bool { return m != g.m && m.votes() })
	for i, m := range g.b.members {
		if m == g.m || !m.votes() {
			continue
		}
		if errs[i] == nil {
			m.identity = ids[i]
		}
		if m.identity == id { // that of one that does not answer now is the last that is known
			return g.refuse(m)
		}
	}
	g.m.identity = id
	return nil
}

// refuse keeps the member without a vote. The quorum may go on without it for long, so that is said at once.
func (g *gate) refuse(twin *member) error {
	first := g.refused == nil
	g.refused = fmt.Errorf("%s and %s are one server, which must not have two votes", twin.Name, g.m.Name)
	g.again = time.Now().Add(pause)
	if first {
		slog.Warn("distlock: quorum: a member has no vote", "error", g.refused)
	}
	return g.refused
}

// votes reports whether calls reach the member.
func (m *member) votes() bool { return m.gate == nil || m.gate.open.Load() }

// Caps returns the member's.
func (g *gate) Caps() driver.Caps { return g.backend.Caps() }

// Close closes the member, without its name in the error.
func (g *gate) Close() error { return g.backend.Backend.Close() }
