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

// Acquire makes one attempt at the member that has the name. While the list changes and
// the name's member with it, the attempt is made at the old one and then at the new one, and
// holds if both grant it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer b.tasks.Done()
	if err := b.valid(&r); err != nil {
		return driver.Grant{}, err
	}
	p, known := b.place(r.Name), b.holds.mode(r.Owner) != 0
	if err := b.reserve(ctx, p, r); err != nil {
		return driver.Grant{}, err
	}
	grant, err := b.acquire(ctx, p, r)
	refused := !r.Queue && (errors.Is(err, driver.ErrHeld) || driver.Final(err))
	if refused || !known && errors.Is(err, driver.ErrUnsent) {
		b.holds.drop(r.Owner)
	}
	return grant, err
}

// reserve sees to it that the entries outlive what is asked for, and notes that it may be
// held from now on.
func (b *Backend) reserve(ctx context.Context, p place, r driver.Request) error {
	if err := b.roll.cover(ctx, p.members(), r.TTL); err != nil {
		return driver.Unsent(fmt.Errorf("shard: %s: %w", driver.Quote(r.Name), err))
	}
	b.holds.note(r.Owner, r.Mode, time.Now().Add(r.TTL))
	return nil
}

// valid refuses what some member could not do, so that no name is special.
func (b *Backend) valid(r *driver.Request) error {
	switch {
	case !b.caps.Modes.Has(r.Mode) || r.Mode == 0:
		return fmt.Errorf("%w: shard: mode %v: not every member has it", driver.ErrUnsupported, r.Mode)
	case r.Queue && b.caps.QueueingOf(r.Mode) == driver.QueueNever:
		return fmt.Errorf("%w: shard: a place in line: not every member has one, or the list of members is changing", driver.ErrUnsupported)
	case r.Mode == driver.Read && !b.caps.Downgrade && b.holds.mode(r.Owner) == driver.Write:
		return fmt.Errorf("%w: shard: a downgrade: not every member can do it", driver.ErrUnsupported)
	case strings.HasPrefix(r.Name, reserved):
		return fmt.Errorf("%w: shard: names that begin with %s are for its own records", driver.ErrInvalid, reserved)
	}
	if !b.caps.Revocable.Has(r.Mode) {
		r.OnRevoke = nil
	}
	return validTTL(r.TTL)
}

// validTTL refuses a TTL that entries could not outlive.
func validTTL(d time.Duration) error {
	if d <= 0 || d > maxTTL {
		return fmt.Errorf("%w: shard: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, d, time.Duration(maxTTL))
	}
	return nil
}

func (b *Backend) acquire(ctx context.Context, p place, r driver.Request) (driver.Grant, error) {
	if p.second != nil {
		return b.acquireBoth(ctx, p, r)
	}
	grant, err := p.first.Acquire(ctx, b.adapt(p.first, r))
	if err != nil {
		err = p.first.wrap(err)
	}
	return grant, err
}

// adapt gives a hold a life of its own where others have one and a session would prolong it.
func (b *Backend) adapt(m *member, r driver.Request) driver.Request {
	if m.Caps().Session && !b.caps.Session {
		r.Fixed = true
	}
	return r
}

// wrap names the member in an error.
func (m *member) wrap(err error) error { return fmt.Errorf("shard: member %s: %w", m.name, err) }

// acquireBoth asks the member of the old list first: so of those who have both lists
// nobody waits for a lock while they keep another one from it. The fence is the greater of
// two that increase, and the other counter is raised to it, for those with one list only.
func (b *Backend) acquireBoth(ctx context.Context, p place, r driver.Request) (driver.Grant, error) {
	r.Fences, r.OnLost, r.OnRevoke = 1, once(r.OnLost), once(r.OnRevoke)
	first, err := p.first.Acquire(ctx, b.adapt(p.first, r))
	if err != nil {
		return driver.Grant{}, p.first.wrap(err)
	}
	second, err := p.second.Acquire(ctx, b.adapt(p.second, r))
	if err != nil {
		return driver.Grant{}, b.giveBack(ctx, p, r.Hold, err)
	}
	grant := driver.Grant{Fence: max(first.Fence, second.Fence), Fences: 1, TTL: min(first.TTL, second.TTL)}
	if !b.caps.Fence {
		return grant, nil
	}
	r.Floor = grant.Fence
	if first.Fence < grant.Fence {
		err = renewOne(ctx, p.first, r.Hold)
	} else if second.Fence < grant.Fence {
		err = renewOne(ctx, p.second, r.Hold)
	}
	if err != nil {
		return driver.Grant{}, fmt.Errorf("shard: %s: its fence could not be raised: %v", driver.Quote(r.Name), err)
	}
	return grant, nil
}

// giveBack ends an attempt that the second member has refused, and answers why it came to
// nothing; if it may have left something the answer is that nobody knows.
func (b *Backend) giveBack(ctx context.Context, p place, h driver.Hold, err error) error {
	if err = p.second.wrap(err); !errors.Is(err, driver.ErrHeld) && !driver.Final(err) {
		return sent(err)
	}
	if back := p.first.Release(ctx, h); back != nil && !errors.Is(back, driver.ErrLost) {
		return fmt.Errorf("shard: member %s refused (%v), and %s could not be told: %v", p.second.name, err, p.first.name, back)
	}
	return err
}

// sent returns err without ErrUnsent, for a request that was sent in part.
func sent(err error) error {
	if errors.Is(err, driver.ErrUnsent) {
		return errors.New(err.Error())
	}
	return err
}

// once is a function that calls f once, also if two members have the same news.
func once(f func()) func() {
	if f == nil {
		return nil
	}
	return sync.OnceFunc(f)
}
