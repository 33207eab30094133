package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt at the member that has the name.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.calls.End()
	m := b.memberOf(r.Name)
	if err := b.adapt(m, &r); err != nil {
		return driver.Grant{}, err
	}
	grant, err := m.Acquire(ctx, r)
	if err != nil {
		err = m.wrap(err)
	}
	return grant, err
}

// adapt refuses requests that some member can't grant, so that no name is special. It gives a hold a
// TTL of its own at a member where the session would prolong it, if other members have TTLs.
func (b *Backend) adapt(m *member, r *driver.Request) error {
	if err := r.Validate(b.caps); err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	if !b.caps.Revocable.Has(r.Mode) {
		r.OnRevoke = nil
	}
	if m.Caps().Session && !b.caps.Session {
		r.Fixed = true
	}
	return nil
}

// Watch returns the member's watch.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	defer b.calls.End()
	m := b.memberOf(r.Name)
	// A member that always queues would take the lock for a waiter that did not ask for a place.
	if m.Caps().Queueing == driver.QueueAlways && b.caps.QueueingOf(r.Mode) != driver.QueueAlways {
		return driver.Watch{}, driver.ErrSkip
	}
	if err := b.adapt(m, &r); err != nil {
		return driver.Watch{}, err
	}
	return m.Watch(ctx, r)
}

// Release ends a hold or a place in the queue.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	m := b.memberOf(h.Name)
	if err := m.Release(ctx, h); err != nil {
		return m.wrap(err)
	}
	return nil
}

// Revoke revokes at the member that has the hold.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	if !b.caps.Revocable.Has(h.Mode) {
		return fmt.Errorf("%w: shard: revoking a hold of mode %v: not every member can do it", driver.ErrUnsupported, h.Mode)
	}
	return b.memberOf(h.Name).Revoke(ctx, h)
}

// Inspect queries the member that has the name.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Info{Name: name}, err
	}
	defer b.calls.End()
	m := b.memberOf(name)
	info, err := m.Inspect(ctx, name)
	if err != nil && !errors.Is(err, driver.ErrSkip) {
		err = m.wrap(err)
	}
	return info, err
}

// List yields the names that each member has. If a member fails it still yields the names of
// the others, and the error names the member.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	var errs []error
	stopped := false
	for _, m := range b.members {
		err := m.List(ctx, prefix, func(name string) bool {
			if b.memberOf(name) == m { // else it is of another list, or of other users of the store
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
