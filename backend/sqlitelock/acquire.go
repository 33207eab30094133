package sqlitelock

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Acquire makes one attempt, in one transaction.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := r.Validate(b.Caps()); err != nil {
		return driver.Grant{}, b.wrap("acquire", r.Name, err)
	}
	meta := b.meta.Encode(r.Meta)
	var g driver.Grant
	err := b.w.do(ctx, false, func(t *tx) (err error) {
		g, err = t.acquire(r, meta)
		return err
	})
	if err != nil {
		return driver.Grant{}, b.wrap("acquire", r.Name, err)
	}
	return g, nil
}

func (t *tx) acquire(r driver.Request, meta string) (driver.Grant, error) {
	now := t.clock.now()
	l, err := load(context.Background(), t.load, r.Name, t.clock.boot, now)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := l.Check(r); err != nil {
		return driver.Grant{}, err
	}
	if blockers := l.Blockers(r); len(blockers) > 0 {
		if first := l.LimitTurn(now); first != nil {
			if err := execute(t.putClaim, r.Name, first.Owner, first.Mode, first.Ticket, 0, first.Since, first.Until, first.Meta); err != nil {
				return driver.Grant{}, err
			}
			blockers = l.Blockers(r)
		}
		if r.Queue {
			if err := t.enqueue(l, r, meta, now); err != nil {
				return driver.Grant{}, err
			}
		}
		return driver.Grant{}, claims.Refusal(blockers, now)
	}
	return t.grant(l, r, meta, now)
}

// grant makes r's owner hold.
func (t *tx) grant(l *lockState, r driver.Request, meta string, now int64) (driver.Grant, error) {
	number, err := l.Next(wallMicros())
	if err != nil {
		return driver.Grant{}, err
	}
	since, until := now, now+int64(r.TTL)
	if own, ok := l.Claim(r.Owner); ok && own.Holds() {
		since, until = own.Since, max(until, own.Until)
		if own.Mode != r.Mode {
			t.queues = append(t.queues, r.Name)
		}
	}
	if err := execute(t.putLock, r.Name, claims.KindOf(r.Mode), r.Limit, number); err != nil {
		return driver.Grant{}, err
	}
	if l.fresh {
		t.added++
	}
	fence := number << claims.SpanBits
	if err := t.write(l, r, 0, fence, since, until, meta, now); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: uint64(fence), Fences: claims.Fences(r), TTL: time.Duration(until - now)}, nil
}

// enqueue gives r a place in the queue, or prolongs the one that it has.
func (t *tx) enqueue(l *lockState, r driver.Request, meta string, now int64) error {
	place := claims.Claim{Ticket: l.NextTicket(), Since: now}
	if own, ok := l.Claim(r.Owner); ok {
		if own.Fresh(r.TTL, now) {
			return nil
		}
		place = own
	}
	return t.write(l, r, place.Ticket, 0, place.Since, now+int64(claims.PlaceLife(r.TTL)), meta, now)
}

// write stores r's claim, and deletes the expired ones.
func (t *tx) write(l *lockState, r driver.Request, ticket, fence, since, until int64, meta string, now int64) error {
	if l.expired > 0 {
		if err := execute(t.deleteExpired, r.Name, now); err != nil {
			return err
		}
	}
	return execute(t.putClaim, r.Name, r.Owner, r.Mode, ticket, fence, since, until, meta)
}
