package sqlitelock

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
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
	if err := valid(r); err != nil {
		return driver.Grant{}, b.wrap("acquire", r.Name, err)
	}
	meta, err := encodeMeta(r.Meta)
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

// valid refuses what the core never asks for.
func valid(r driver.Request) error {
	switch {
	case r.Mode == 0 || !driver.AllModes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, r.Mode)
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", driver.ErrInvalid)
	case r.TTL <= 0 || r.TTL > maxTTL:
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, r.TTL, maxTTL)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: limit %d: want at least 1", driver.ErrInvalid, r.Limit)
	}
	return nil
}

func encodeMeta(meta map[string]string) (string, error) {
	if len(meta) == 0 {
		return "", nil
	}
	text, err := json.Marshal(meta)
	return string(text), err
}

func (t *tx) acquire(r driver.Request, meta string) (driver.Grant, error) {
	now := t.clock.now()
	l, err := look(context.Background(), t.look, r.Name, t.clock.boot, now)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := l.check(r); err != nil {
		return driver.Grant{}, err
	}
	if ahead := l.blockers(r); len(ahead) > 0 {
		if r.Queue {
			if err := t.stand(l, r, meta, now); err != nil {
				return driver.Grant{}, err
			}
		}
		return driver.Grant{}, held(ahead, now)
	}
	return t.grant(l, r, meta, now)
}

// grant makes r's owner hold.
func (t *tx) grant(l *lock, r driver.Request, meta string, now int64) (driver.Grant, error) {
	number, err := l.next(wallMicros())
	if err != nil {
		return driver.Grant{}, err
	}
	since := now
	if own, ok := l.claim(r.Owner); ok && own.holds() {
		since = own.since
		if own.mode != r.Mode {
			t.freed = append(t.freed, r.Name)
		}
	}
	if err := t.exec(t.lock, r.Name, kindOf(r.Mode), r.Limit, number); err != nil {
		return driver.Grant{}, err
	}
	if l.number == 0 {
		t.fresh++
	}
	fence := number << spanBits
	if err := t.write(l, r, 0, fence, since, now+int64(r.TTL), meta, now); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: uint64(fence), Fences: l.fencesFor(r), Queued: l.queued(r.Owner), TTL: r.TTL}, nil
}

// stand keeps r's place in line, or gives it one.
func (t *tx) stand(l *lock, r driver.Request, meta string, now int64) error {
	place := claim{ticket: l.lastTicket() + 1, since: now}
	if own, ok := l.claim(r.Owner); ok {
		place = own
	}
	return t.write(l, r, place.ticket, 0, place.since, now+int64(r.TTL), meta, now)
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

// held words a refusal.
func held(ahead []claim, now int64) error {
	e := &driver.HeldError{}
	first := ahead[0].until
	for _, c := range ahead {
		first = min(first, c.until)
		if c.holds() || !ahead[0].holds() {
			e.Holders = append(e.Holders, c.info(now))
		}
	}
	e.Retry = time.Duration(first - now)
	return e
}
