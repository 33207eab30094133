package sqlitelock

import (
	"context"
	sqldriver "database/sql/driver"
	"slices"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// renewBatch bounds the holds that one transaction renews. It keeps other callers waiting
// for about a millisecond.
const renewBatch = 128

// Renew prolongs holds, up to renewBatch in one transaction. It returns when ctx ends, whatever the disk does.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	answers := make([]error, 0, len(holds))
	for batch := range slices.Chunk(holds, renewBatch) {
		var facts []error
		err := b.w.enqueue(b.w.newJob(ctx, false, func(t *tx) (err error) {
			facts, err = t.renewAll(batch)
			return err
		}))
		for i, h := range batch {
			fact := err // the writer may still write facts then
			if err == nil {
				fact = facts[i]
			}
			answers = append(answers, b.wrap("renew", h.Name, fact))
		}
	}
	return answers
}

// renewAll answers each hold with nil or a fact.
func (t *tx) renewAll(holds []driver.Hold) ([]error, error) {
	facts := make([]error, len(holds))
	for i, h := range holds {
		if facts[i] = t.renewOne(h); isUnknown(facts[i]) {
			return nil, facts[i]
		}
	}
	return facts, nil
}

func (t *tx) renewOne(h driver.Hold) error {
	if err := h.ValidateRenewal(); err != nil {
		return err
	}
	now := t.clock.now()
	n, err := t.renew.exec(now+int64(h.TTL), h.Name, h.Owner, now)
	switch {
	case err != nil:
		return err
	case n == 0:
		return driver.ErrLost
	case h.Floor == 0:
		return nil
	}
	_, err = t.raiseFence.exec(int64(h.Floor>>claims.SpanBits), h.Name)
	return err
}

// Release ends a hold or a place in the queue, with a single statement.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	err := b.w.do(ctx, true, func(t *tx) error { return t.delete(h) })
	return b.wrap("release", h.Name, err)
}

func (t *tx) delete(h driver.Hold) error {
	now := t.clock.now()
	found := false
	var until, queued int64
	err := t.release.query(context.Background(), func(row []sqldriver.Value) {
		found, until, queued = true, integer(row[0]), integer(row[1])
	}, h.Name, h.Owner)
	switch {
	case err != nil:
		return err
	case !found:
		return driver.ErrLost
	case queued > 0:
		t.queues = append(t.queues, h.Name)
	default:
		t.freed = append(t.freed, h.Name)
	}
	if until <= now {
		return driver.ErrLost
	}
	return nil
}
