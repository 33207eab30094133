package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Watch returns the member's watch. It returns ErrSkip while the name's member changes.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Watch{}, err
	}
	defer b.calls.End()
	t := b.targetOf(r.Name)
	// A member that always queues would take the lock for a waiter that did not ask for a place.
	takes := t.first.Caps().Queueing == driver.QueueAlways && b.caps.QueueingOf(r.Mode) != driver.QueueAlways
	if takes || t.second != nil {
		return driver.Watch{}, driver.ErrSkip
	}
	if err := b.validate(&r); err != nil {
		return driver.Watch{}, err
	}
	if err := b.reserve(ctx, t, r); err != nil {
		return driver.Watch{}, err
	}
	return t.first.Watch(ctx, b.adapt(t.first, r))
}

// Inspect queries the member that has the name, or both while the name's member changes.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Info{Name: name}, err
	}
	defer b.calls.End()
	t := b.targetOf(name)
	first, err := t.first.inspect(ctx, name)
	if err != nil || t.second == nil {
		return first, err
	}
	second, err := t.second.inspect(ctx, name)
	if err != nil {
		return second, err
	}
	return mergeInfo(first, second), nil
}

func (m *member) inspect(ctx context.Context, name string) (driver.Info, error) {
	info, err := m.Inspect(ctx, name)
	if err != nil && !errors.Is(err, driver.ErrSkip) {
		err = m.wrap(err)
	}
	return info, err
}

// mergeInfo merges the reports of two members. A process that holds at one of them is about to
// hold or to release, or has only one of the lists.
func mergeInfo(first, second driver.Info) driver.Info {
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

// List yields the names that each member has. If a member fails it still yields the names of
// the others, and the error names the member.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	var errs []error
	stopped, listed := false, map[string]bool{}
	for _, m := range b.members {
		err := m.List(ctx, prefix, func(name string) bool {
			if b.listable(m, name, listed) {
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

// listable reports whether to list a name that member m has. It skips registrations,
// remains of other lists, and names that their other member has listed.
func (b *Backend) listable(m *member, name string, listed map[string]bool) bool {
	t := b.targetOf(name)
	if t.first != m && t.second != m || strings.HasPrefix(name, reserved) || listed[name] {
		return false
	}
	if t.second != nil {
		listed[name] = true
	}
	return true
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
	err := error(nil)
	for _, m := range b.targetOf(h.Name).members() {
		if err = m.Revoke(ctx, h); !errors.Is(err, driver.ErrLost) {
			break
		}
	}
	return err
}
