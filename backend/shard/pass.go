package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Release ends a hold or a place in line where it is.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	err := b.release(ctx, b.place(h.Name), h)
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.holds.drop(h.Owner)
	}
	return err
}

// release asks both members if there are two: it is lost only if neither knew of it.
func (b *Backend) release(ctx context.Context, p place, h driver.Hold) error {
	lost, unknown := 0, error(nil)
	for _, m := range p.members() {
		switch err := m.Release(ctx, h); {
		case errors.Is(err, driver.ErrLost):
			lost++
		case err != nil:
			if unknown = m.wrap(err); len(p.members()) > 1 {
				unknown = sent(unknown)
			}
		}
	}
	if unknown == nil && lost == len(p.members()) {
		return fmt.Errorf("shard: %s: %w", driver.Quote(h.Name), driver.ErrLost)
	}
	return unknown
}

// Watch is the member's. It is ErrSkip while the name's member changes.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	defer b.tasks.Done()
	p := b.place(r.Name)
	w, ok := p.first.Backend.(driver.Watcher)
	// One that waits natively would take the lock for somebody who did not ask for a place.
	odd := p.first.Caps().Queueing == driver.QueueAlways && b.caps.QueueingOf(r.Mode) != driver.QueueAlways
	if !ok || odd || p.second != nil {
		return driver.Watch{}, driver.ErrSkip
	}
	if err := b.valid(&r); err != nil {
		return driver.Watch{}, err
	}
	if err := b.reserve(ctx, p, r); err != nil {
		return driver.Watch{}, err
	}
	return w.Watch(ctx, b.adapt(p.first, r))
}

// Inspect asks the member that has the name; while that changes, both.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Info{Name: name}, err
	}
	defer b.tasks.Done()
	p := b.place(name)
	first, err := p.first.inspect(ctx, name)
	if err != nil || p.second == nil {
		return first, err
	}
	second, err := p.second.inspect(ctx, name)
	if err != nil {
		return second, err
	}
	return both(first, second), nil
}

func (m *member) inspect(ctx context.Context, name string) (driver.Info, error) {
	i, ok := m.Backend.(driver.Inspector)
	if !ok {
		return driver.Info{Name: name}, driver.ErrSkip
	}
	info, err := i.Inspect(ctx, name)
	if err != nil && !errors.Is(err, driver.ErrSkip) {
		err = m.wrap(err)
	}
	return info, err
}

// both is what two members tell of a lock: who holds at one alone is about to get it or
// to lose it, or has one of the lists only.
func both(first, second driver.Info) driver.Info {
	if len(first.Holders) == 0 {
		return second
	}
	for i := range first.Holders {
		h := &first.Holders[i]
		for _, o := range second.Holders {
			if o.Owner == h.Owner {
				h.Fence, h.Left = max(h.Fence, o.Fence), min(h.Left, o.Left)
			}
		}
	}
	return first
}

// List lists what each member has of its names. If a member can't be asked the others'
// are listed all the same, and the error says which.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	var errs []error
	stopped, twice := false, map[string]bool{}
	for _, m := range b.members {
		i, ok := m.Backend.(driver.Inspector)
		if !ok {
			return driver.ErrSkip
		}
		err := i.List(ctx, prefix, func(name string) bool {
			if b.has(m, name, twice) {
				stopped = !yield(name)
			}
			return !stopped
		})
		if err != nil {
			errs = append(errs, m.wrap(err))
		}
		if stopped || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// has reports whether a name is to be listed because member m has it: what is left over
// from another list is not, nor what was listed at its other member.
func (b *Backend) has(m *member, name string, twice map[string]bool) bool {
	p := b.place(name)
	if p.first != m && p.second != m || strings.HasPrefix(name, reserved) || twice[name] {
		return false
	}
	if p.second != nil {
		twice[name] = true
	}
	return true
}

// Revoke asks the holder where it holds.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	if !b.caps.Revocable.Has(h.Mode) {
		return fmt.Errorf("%w: shard: asking a holder of mode %v: not every member can do it", driver.ErrUnsupported, h.Mode)
	}
	err := error(nil)
	for _, m := range b.place(h.Name).members() {
		r, ok := m.Backend.(driver.Revoker)
		if !ok {
			return fmt.Errorf("%w: shard: member %s can't ask holders", driver.ErrUnsupported, m.name)
		}
		if err = r.Revoke(ctx, h); !errors.Is(err, driver.ErrLost) {
			break
		}
	}
	return err
}
