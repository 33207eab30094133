package sqlitelock

import (
	"context"

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
	l, err := t.read(r.Name, t.clock.boot, now)
	if err != nil {
		return driver.Grant{}, err
	}
	number, err := l.Next(wallMicros())
	if err != nil {
		return driver.Grant{}, err
	}
	fence, limit := number<<claims.SpanBits, l.Limit
	d := l.Acquire(&r, claims.Claim{Fence: fence, Meta: meta}, now)
	if err := t.write(l, &r, d, now); err != nil {
		return driver.Grant{}, err
	}
	if d.Err == nil {
		l.Number = number
	}
	if d.Err == nil || l.Limit != limit {
		if _, err := t.putLock.exec(r.Name, int64(l.Kind), int64(l.Limit), l.Number); err != nil {
			return driver.Grant{}, err
		}
	}
	if d.Err != nil {
		return driver.Grant{}, d.Err
	}
	if l.fresh {
		t.added++
	}
	if d.Frees {
		t.queues = append(t.queues, r.Name)
	}
	return driver.Grant{Fence: uint64(fence), Fences: claims.Fences(r), TTL: r.TTL}, nil
}

// write stores the claims that a decision has changed, and deletes the expired ones.
func (t *tx) write(l *lockState, r *driver.Request, d claims.Decision, now int64) error {
	sooner := d.Sooner
	if d.Own {
		sooner = append(sooner, l.sooner...)
	}
	for i := range sooner {
		if err := t.put(r.Name, &sooner[i]); err != nil {
			return err
		}
	}
	if !d.Own {
		return nil
	}
	if l.expired > 0 {
		if _, err := t.deleteExpired.exec(r.Name, now); err != nil {
			return err
		}
	}
	return t.put(r.Name, l.Claim(r.Owner))
}

func (t *tx) put(name string, c *claims.Claim) error {
	_, err := t.putClaim.exec(name, c.Owner, int64(c.Mode), c.Place, c.Fence, c.Since, c.Until, c.Meta)
	return err
}
