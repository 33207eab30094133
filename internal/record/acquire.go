package record

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt: a write if the lock is known to be free, else a read, and a write if that found it free.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := b.usable(ctx)
	if err == nil {
		err = r.Validate(b.caps)
	}
	if err != nil {
		return driver.Grant{}, wrap("acquire", r.Name, err)
	}
	s, _ := b.memory.seen.get(r.Name)
	if s.Version == "" || s.Holder != r.Owner && !s.free(b.now()) { // an absent one's Counter is of its moment
		s, err = b.look(ctx, r.Name, r.Owner)
		b.memory.waiters.put(r.Owner, struct{}{})
		if err != nil {
			return driver.Grant{}, wrap("acquire", r.Name, driver.Unsent(err)) // a read takes nothing
		}
	}
	s, err = b.change(ctx, r.Name, s, func(s sighting) (Record, error) { return b.granted(s, r, b.now()) })
	switch {
	case err == nil:
		b.memory.unanswered.drop(r.Owner)
		return b.grant(s.Record, r), nil
	case errors.Is(err, errMoved):
		return driver.Grant{}, b.refusal(s, b.now()) // others were faster each time
	case errors.Is(err, driver.ErrHeld):
		return driver.Grant{}, err
	case !driver.Final(err) && !errors.Is(err, driver.ErrUnsent):
		b.memory.unanswered.put(r.Owner, s.Version)
	}
	return driver.Grant{}, wrap("acquire", r.Name, err)
}

// span bounds the fences of a grant: no store grants so often that a counter which began with its clock in microseconds
// runs ahead of that.
const span = 1024

// granted returns the record that makes r.Owner the holder. The hold of an Owner that holds is not shortened.
func (b *Backend) granted(s sighting, r driver.Request, now time.Time) (Record, error) {
	next := s.Record
	next.TTL = r.TTL
	switch {
	case s.Holder == r.Owner:
		next.TTL = max(r.TTL, s.since.Add(s.TTL).Sub(now))
	case !s.free(now):
		return next, b.refusal(s, now)
	}
	next.Holder, next.Foreign, next.Meta, next.Fence = r.Owner, false, r.Meta, 0
	if !b.caps.Floor {
		next.Counter++
		return next, nil
	}
	fences := min(max(r.Fences, 1), span)
	if s.Counter >= math.MaxInt64-fences {
		return next, fmt.Errorf("%w: %s has used up its fences", driver.ErrInvalid, driver.Quote(r.Name))
	}
	next.Fence, next.Counter = s.Counter+1, s.Counter+fences
	return next, nil
}

// grant returns the grant that a record is of.
func (b *Backend) grant(written Record, r driver.Request) driver.Grant {
	if !b.caps.Floor {
		return driver.Grant{Fence: written.Stamp, Fences: 1, TTL: r.TTL}
	}
	return driver.Grant{Fence: written.Fence, Fences: written.Counter - written.Fence + 1, TTL: r.TTL}
}

// refusal says who holds, and how long this client still has to wait if the holder is dead.
func (b *Backend) refusal(s sighting, now time.Time) *driver.HeldError {
	if s.free(now) {
		return &driver.HeldError{}
	}
	return &driver.HeldError{Retry: s.left(now), Holders: []driver.Holder{b.holder(s, now)}}
}

// holder describes the holder. Where its hold ends only for those who watch it, others are promised no end.
func (b *Backend) holder(s sighting, now time.Time) driver.Holder {
	h := driver.Holder{Owner: s.Holder, Mode: driver.Exclusive, Fence: s.Fence, Held: -1, Left: -1, Foreign: s.Foreign, Meta: s.Meta}
	if b.caps.Ends() {
		h.Left = s.left(now)
	}
	return h
}
