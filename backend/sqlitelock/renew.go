package sqlitelock

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// renewBatch bounds the holds that one transaction renews. It keeps other callers waiting
// for about a millisecond.
const renewBatch = 128

// Renew prolongs holds, up to renewBatch in one transaction.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	answers := make([]error, 0, len(holds))
	for len(holds) > 0 {
		n := min(len(holds), renewBatch)
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
		if isUnknown(err) {
			return nil, err
		}
		facts[i] = err
	}
	return facts, nil
}

func (t *tx) renewOne(h driver.Hold) error {
	if err := h.ValidateRenewal(); err != nil {
		return err
	}
	now := t.clock.now()
	stmt := t.renew
	if h.Shorten {
		// The waiters were refused with a later end.
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
	return execute(t.raiseFence, int64(h.Floor>>claims.SpanBits), h.Name)
}
