package sqlitelock

import (
	"context"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

const (
	sqlLock = `
INSERT INTO locks (name, kind, lim, number) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, lim = excluded.lim, number = excluded.number`

	sqlClaim = `
INSERT INTO claims (name, owner, mode, ticket, fence, since, until, meta) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, owner) DO UPDATE SET mode = excluded.mode, ticket = excluded.ticket,
	fence = excluded.fence, since = excluded.since, until = excluded.until, meta = excluded.meta`

	sqlBury = `DELETE FROM claims WHERE name = ? AND until <= ?`
)

// Acquire makes one attempt, in one transaction.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := claims.CheckRequest(r); err != nil {
		return driver.Grant{}, b.wrap("acquire", r.Name, err)
	}
	meta, err := claims.EncodeMeta(r.Meta)
	if err != nil {
		return driver.Grant{}, b.wrap("acquire", r.Name, err)
	}
	var g driver.Grant
	err = b.w.do(ctx, false, func(t *tx) (err error) {
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
	l, err := look(context.Background(), t.look, r.Name, t.clock.boot, now)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := l.Check(r); err != nil {
		return driver.Grant{}, err
	}
	if ahead := l.Blockers(r); len(ahead) > 0 {
		if r.Queue {
			if err := t.stand(l, r, meta, now); err != nil {
				return driver.Grant{}, err
			}
		}
		return driver.Grant{}, claims.Refusal(ahead, now)
	}
	return t.grant(l, r, meta, now)
}

// grant makes r's owner hold.
func (t *tx) grant(l *lock, r driver.Request, meta string, now int64) (driver.Grant, error) {
	number, err := l.Next(wallMicros())
	if err != nil {
		return driver.Grant{}, err
	}
	since, until := now, now+int64(r.TTL)
	if own, ok := l.Claim(r.Owner); ok && own.Holds() {
		since, until = own.Since, max(until, own.Until)
		if own.Mode != r.Mode {
			t.freed = append(t.freed, r.Name)
		}
	}
	if err := t.exec(t.lock, r.Name, claims.KindOf(r.Mode), r.Limit, number); err != nil {
		return driver.Grant{}, err
	}
	if l.fresh {
		t.fresh++
	}
	fence := number << claims.SpanBits
	if err := t.write(l, r, 0, fence, since, until, meta, now); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: uint64(fence), Fences: l.Fences(r), Queued: l.Queued(r.Owner), TTL: time.Duration(until - now)}, nil
}

// stand keeps r's place in line, or gives it one.
func (t *tx) stand(l *lock, r driver.Request, meta string, now int64) error {
	place := claims.Claim{Ticket: l.NextTicket(), Since: now}
	if own, ok := l.Claim(r.Owner); ok {
		place = own
	}
	return t.write(l, r, place.Ticket, 0, place.Since, max(place.Until, now+int64(r.TTL)), meta, now)
}

// write stores r's claim, and buries those that have ended.
func (t *tx) write(l *lock, r driver.Request, ticket, fence, since, until int64, meta string, now int64) error {
	if l.dead > 0 {
		if err := t.exec(t.bury, r.Name, now); err != nil {
			return err
		}
	}
	return t.exec(t.claim, r.Name, r.Owner, r.Mode, ticket, fence, since, until, meta)
}
