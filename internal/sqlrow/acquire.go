package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/unsent"
)

// Sizes of what a row keeps. A database that is not strict would cut off what is longer.
const (
	MaxOwner = 64        // bytes
	MaxName  = 1<<16 - 1 // bytes
	MaxText  = 1<<24 - 1 // bytes of Meta, and of Claims
	MaxLimit = math.MaxInt32
)

// busyRetry is when whoever was always slower than others asks again.
const busyRetry = 5 * time.Millisecond

// Acquire makes one attempt. Whoever wants to hold alone needs one statement if nobody
// else wants the lock; else the row is read, and written if that changes it.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.acquire(ctx, r)
	return g, b.wrap("acquire", r.Name, err)
}

func (b *Backend) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	meta, err := b.validate(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	c := claims.Claim{Owner: r.Owner, Mode: r.Mode, Meta: meta, Address: b.address(KeyOf(r.Name))}
	if r.Mode.Alone() {
		if g, err := b.take(ctx, r, c); err != nil || g.Fence > 0 {
			return g, err
		}
	}
	var g driver.Grant
	err = b.change(ctx, r.Name, func(s *state) (v decision) {
		g, v = s.decide(r, c)
		return v
	})
	if errors.Is(err, errBusy) {
		err = &driver.HeldError{Retry: busyRetry}
	}
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// validate refuses what no row can hold, and encodes the request's Meta.
func (b *Backend) validate(ctx context.Context, r driver.Request) (meta string, err error) {
	if err := b.open(ctx); err != nil {
		return "", err
	}
	if err := claims.CheckRequest(r); err != nil {
		return "", err
	}
	meta, err = claims.EncodeMeta(r.Meta)
	switch {
	case err != nil:
		return "", err
	case len(r.Owner) > MaxOwner:
		return "", fmt.Errorf("%w: the owner has %d bytes, at most %d are possible", driver.ErrInvalid, len(r.Owner), MaxOwner)
	case len(r.Name) > MaxName:
		return "", fmt.Errorf("%w: the name has %d bytes, at most %d are possible", driver.ErrInvalid, len(r.Name), MaxName)
	case r.Mode == driver.Counted && r.Limit > MaxLimit:
		return "", fmt.Errorf("%w: limit %d: at most %d are possible", driver.ErrInvalid, r.Limit, MaxLimit)
	case len(meta) > MaxText:
		return "", fmt.Errorf("%w: the meta data has %d bytes, at most %d are possible", driver.ErrInvalid, len(meta), MaxText)
	}
	return meta, nil
}

// take is the attempt by one statement. No fence: it did not help.
func (b *Backend) take(ctx context.Context, r driver.Request, c claims.Claim) (driver.Grant, error) {
	number, err := b.dialect.Take(ctx, TakeRequest{
		Name: r.Name, Kind: r.Mode, Owner: r.Owner,
		TTL: wholeMicros(r.TTL), Meta: bytesOf(c.Meta), Address: c.Address,
	})
	if err != nil || number == 0 {
		return driver.Grant{}, unsent.Mark(err)
	}
	var alone claims.Lock
	return driver.Grant{Fence: uint64(number) << claims.SpanBits, Fences: alone.Fences(r), TTL: r.TTL}, nil
}

// decide decides on a request whose claim would be c.
func (s *state) decide(r driver.Request, c claims.Claim) (driver.Grant, decision) {
	if err := s.Check(r); err != nil {
		return driver.Grant{}, decision{err: err}
	}
	if ahead := s.Blockers(r); len(ahead) > 0 {
		refusal := claims.Refusal(ahead, s.now)
		if r.Queue {
			s.enqueue(r, c)
		}
		return driver.Grant{}, decision{write: r.Queue, err: refusal}
	}
	return s.grant(r, c)
}

// grant makes r's owner hold.
func (s *state) grant(r driver.Request, c claims.Claim) (driver.Grant, decision) {
	number, err := s.Next(s.now / micro)
	if err != nil {
		return driver.Grant{}, decision{err: err}
	}
	v := decision{write: true}
	c.Since, c.Until = s.now, s.ends(r.TTL)
	if own, ok := s.Claim(r.Owner); ok && own.Holds() {
		c.Since, c.Until, v.frees = own.Since, max(c.Until, own.Until), own.Mode != r.Mode
	}
	c.Fence = number << claims.SpanBits
	s.Kind, s.Limit, s.Number = claims.KindOf(r.Mode), r.Limit, number
	s.set(c)
	return driver.Grant{Fence: uint64(c.Fence), Fences: s.Fences(r), Queued: s.Queued(r.Owner), TTL: r.TTL}, v
}

// enqueue keeps r's place in line, or gives it one.
func (s *state) enqueue(r driver.Request, c claims.Claim) {
	c.Ticket, c.Since = s.NextTicket(), s.now
	if own, ok := s.Claim(r.Owner); ok {
		c.Ticket, c.Since = own.Ticket, own.Since
	}
	c.Until = s.ends(r.TTL)
	s.set(c)
}
