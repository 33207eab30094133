package sqlitelock

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

const (
	sqlRenew   = `UPDATE claims SET until = max(until, ?) WHERE name = ? AND owner = ? AND fence > 0 AND until > ?`
	sqlShorten = `UPDATE claims SET until = ? WHERE name = ? AND owner = ? AND fence > 0 AND until > ?`
	sqlFloor   = `UPDATE locks SET number = max(number, ?) WHERE name = ?`
)

// renewChunk is how many holds are renewed in one transaction: they keep other
// callers waiting for about a millisecond.
const renewChunk = 128

// Renew prolongs holds, some at a time.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	answers := make([]error, 0, len(holds))
	for len(holds) > 0 {
		n := min(len(holds), renewChunk)
		answers = append(answers, b.renew(ctx, holds[:n])...)
		holds = holds[n:]
	}
	return answers
}

func (b *Backend) renew(ctx context.Context, holds []driver.Hold) []error {
	var facts []error
	err := b.w.do(ctx, false, func(t *tx) (err error) {
		facts, err = t.renewAll(holds)
		return err
	})
	answers := make([]error, len(holds))
	for i, h := range holds {
		if err != nil {
			answers[i] = b.wrap("renew", h.Name, err)
		} else {
			answers[i] = b.wrap("renew", h.Name, facts[i])
		}
	}
	return answers
}

// renewAll answers each hold with nil or a fact.
func (t *tx) renewAll(holds []driver.Hold) ([]error, error) {
	facts := make([]error, len(holds))
	for i, h := range holds {
		err := t.renewOne(h)
		if failed(err) {
			return nil, err
		}
		facts[i] = err
	}
	return facts, nil
}

func (t *tx) renewOne(h driver.Hold) error {
	if err := claims.CheckRenewal(h); err != nil {
		return err
	}
	now := t.clock.now()
	stmt := t.renew
	if h.Shorten {
		// Waiters were told that they need not ask before its old end.
		stmt, t.freed = t.shorten, append(t.freed, h.Name)
	}
	res, err := stmt.ExecContext(context.Background(), now+int64(h.TTL), h.Name, h.Owner, now)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	switch {
	case err != nil:
		return err
	case n == 0:
		return driver.ErrLost
	case h.Floor == 0:
		return nil
	}
	return t.exec(t.floor, int64(h.Floor>>claims.SpanBits), h.Name)
}
