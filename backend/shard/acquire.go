package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt at the member that has the name. While the name's member
// changes, it makes one at the old member and then one at the new one, and holds if both
// grant it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.calls.End()
	if err := b.validate(&r); err != nil {
		return driver.Grant{}, err
	}
	t, known := b.targetOf(r.Name), b.owners.mode(r.Owner) != 0
	if err := b.reserve(ctx, t, r); err != nil {
		return driver.Grant{}, err
	}
	grant, err := b.acquire(ctx, t, r)
	refused := !r.Queue && (errors.Is(err, driver.ErrHeld) || driver.Final(err))
	if refused || !known && errors.Is(err, driver.ErrUnsent) {
		b.owners.remove(r.Owner)
	}
	return grant, err
}

// reserve makes sure that the registrations outlive the request, and notes that its Owner
// may hold from now on.
func (b *Backend) reserve(ctx context.Context, t target, r driver.Request) error {
	if err := b.membership.cover(ctx, t.members(), r.TTL); err != nil {
		return driver.Unsent(fmt.Errorf("shard: %s: %w", driver.Quote(r.Name), err))
	}
	b.owners.add(r.Owner, r.Mode, time.Now().Add(r.TTL), true)
	return nil
}

// validate refuses requests that some member can't grant, so that no name is special.
func (b *Backend) validate(r *driver.Request) error {
	err := r.Validate(b.caps)
	switch {
	case err != nil:
		return fmt.Errorf("shard: %w", err)
	case r.Mode == driver.Read && !b.caps.Downgrade && b.owners.mode(r.Owner) == driver.Write:
		return fmt.Errorf("%w: shard: a downgrade: not every member can do it", driver.ErrUnsupported)
	case strings.HasPrefix(r.Name, reserved):
		return fmt.Errorf("%w: shard: names that begin with %s are for its own registrations", driver.ErrInvalid, reserved)
	}
	if !b.caps.Revocable.Has(r.Mode) {
		r.OnRevoke = nil
	}
	return nil
}

func (b *Backend) acquire(ctx context.Context, t target, r driver.Request) (driver.Grant, error) {
	if t.second != nil {
		return b.acquireBoth(ctx, t, r)
	}
	grant, err := t.first.Acquire(ctx, b.adapt(t.first, r))
	if err != nil {
		err = t.first.wrap(err)
	}
	return grant, err
}

// adapt gives a hold a TTL of its own at a member where the session would prolong it, if other
// members have TTLs.
func (b *Backend) adapt(m *member, r driver.Request) driver.Request {
	if m.Caps().Session && !b.caps.Session {
		r.Fixed = true
	}
	return r
}

// acquireBoth locks at the old list's member first. As all processes with both lists use this
// order, they don't block each other. The fence is the greater of the two, and the other
// counter is raised to it, for processes that have only one of the lists.
func (b *Backend) acquireBoth(ctx context.Context, t target, r driver.Request) (driver.Grant, error) {
	r.Fences, r.OnLost, r.OnRevoke = 1, once(r.OnLost), once(r.OnRevoke)
	first, err := t.first.Acquire(ctx, b.adapt(t.first, r))
	if err != nil {
		return driver.Grant{}, t.first.wrap(err)
	}
	second, err := t.second.Acquire(ctx, b.adapt(t.second, r))
	if err != nil {
		return driver.Grant{}, b.giveBack(ctx, t, r.Hold, err)
	}
	grant := driver.Grant{Fence: max(first.Fence, second.Fence), Fences: 1, TTL: min(first.TTL, second.TTL)}
	if !b.caps.Fence {
		grant.Fence = 0 // the later fences of one list's member may be smaller
		return grant, nil
	}
	r.Floor = grant.Fence
	if first.Fence < grant.Fence {
		err = t.first.RenewOne(ctx, r.Hold)
	} else if second.Fence < grant.Fence {
		err = t.second.RenewOne(ctx, r.Hold)
	}
	if err != nil {
		return driver.Grant{}, fmt.Errorf("shard: %s: its fence could not be raised: %v", driver.Quote(r.Name), err)
	}
	return grant, nil
}

// giveBack ends an attempt that the second member has refused, and returns the refusal. The
// outcome is unknown if the attempt may have left something.
func (b *Backend) giveBack(ctx context.Context, t target, h driver.Hold, err error) error {
	if err = t.second.wrap(err); !errors.Is(err, driver.ErrHeld) && !driver.Final(err) {
		return sent(err)
	}
	if back := t.first.Release(ctx, h); back != nil && !errors.Is(back, driver.ErrLost) {
		err = fmt.Errorf("shard: member %s refused (%v), and the release at %s failed: %v", t.second.Name, err, t.first.Name, back)
	}
	return driver.Spent(err)
}

// sent returns err without ErrUnsent, for a request that was sent to one of two members.
func sent(err error) error {
	if errors.Is(err, driver.ErrUnsent) {
		return errors.New(err.Error())
	}
	return err
}

// once returns a function that calls f once, also if both members call it.
func once(f func()) func() {
	if f == nil {
		return nil
	}
	return sync.OnceFunc(f)
}

// Release ends a hold or a place in the queue.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	err := b.release(ctx, b.targetOf(h.Name), h)
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.owners.remove(h.Owner)
	}
	return err
}

// release releases at one or both members. A hold is lost if no member had it, one that was taken here also if one of two
// did not.
func (b *Backend) release(ctx context.Context, t target, h driver.Hold) error {
	lost, unknown := 0, error(nil)
	for _, m := range t.members() {
		switch err := m.Release(ctx, h); {
		case errors.Is(err, driver.ErrLost):
			lost++
		case err != nil:
			if unknown = m.wrap(err); len(t.members()) > 1 {
				unknown = sent(unknown)
			}
		}
	}
	if unknown == nil && (lost == len(t.members()) || lost > 0 && b.owners.taken(h.Owner)) {
		return fmt.Errorf("shard: %s: %w", driver.Quote(h.Name), driver.ErrLost)
	}
	return unknown
}
