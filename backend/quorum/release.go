package quorum

import (
	"context"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// unknownTTL is for how long a hold is released whose TTL nobody has told.
const unknownTTL = 30 * time.Second

// linger is how long to wait for the rest when a majority has answered.
func (b *Backend) linger(began time.Time, ttl time.Duration) time.Duration {
	return min(10*time.Millisecond+time.Since(began), b.timeout(ttl)/4)
}

// Release ends Owner's hold on all members, and returns when a majority has said that
// it is gone: those suffice for the next to get in. The others get a moment more, since
// with votes that are still there the next ones are more likely to split theirs. Members
// that do not answer are told again and again in the background, until they do or the TTL
// has passed.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	if err := b.canHold(h.Mode); err != nil {
		return err
	}
	kept := b.holds.drop(h.Owner)
	answers := make(chan answer, len(b.members))
	for i, m := range b.members {
		b.clean(ctx, m, h, kept, func(err error) { answers <- answer{i, err} })
	}
	t, pending := tally{of: len(b.members)}, b.everyone()
	began, lingered := time.Now(), (<-chan time.Time)(nil)
	for b.worthWaiting(pending.has) {
		if lingered == nil && t.released(b.majority) {
			lingered = time.After(b.linger(began, h.TTL))
		}
		select {
		case a := <-answers:
			pending[a.member] = false
			t.add(b.members[a.member], a.err)
			continue
		case <-lingered:
		case <-ctx.Done():
			if lingered == nil {
				return fmt.Errorf("quorum: release %s: %w", driver.Quote(h.Name), ctx.Err())
			}
		}
		break
	}
	return b.released(h, &t)
}

// answer is what one member said.
type answer struct {
	member int
	err    error
}

// released makes the answer of all. It is nil only if a majority has released, and ErrLost
// only if those who said so leave no majority that Owner could have had. Between the two
// nothing tells whether Owner held when the release began: a successor may have been granted
// by those that said ErrLost and those that said nothing. Released again, the Owner is lost.
func (b *Backend) released(h driver.Hold, t *tally) error {
	switch {
	case t.lost > t.of-b.majority:
		return fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
	case t.yes >= b.majority:
		return nil
	case t.final > t.of-b.majority:
		return fmt.Errorf("quorum: release %s: %w", driver.Quote(h.Name), t.finalErr)
	}
	return t.unknown("release", h.Name)
}

// released reports whether more answers would change nothing.
func (t *tally) released(majority int) bool {
	return t.yes >= majority || t.lost > t.of-majority || t.final > t.of-majority
}

// clean releases h at m. If m does not answer it is released in the background until m
// does, the TTL has passed and it is kept no longer, or the Owner is asked for anew. told, if
// not nil, gets the first answer.
func (b *Backend) clean(values context.Context, m *member, h driver.Hold, kept time.Time, told func(error)) {
	ttl := h.TTL
	if ttl <= 0 {
		ttl = unknownTTL
	}
	end := later(b.atMembers(ttl), kept)
	b.send(m, cleans, []string{h.Owner}, func(spared bool) {
		err := errSpared
		if !spared {
			err = b.releaseAt(values, m, h)
		}
		switch {
		case spared: // what comes next cleans, or wants to keep it
		case isUnknown(err):
			b.leave(m, h, end)
		default:
			m.remains.forget(h.Owner)
		}
		if told != nil {
			told(err)
		}
	})
}

// releaseAt makes one call to a member.
func (b *Backend) releaseAt(values context.Context, m *member, h driver.Hold) error {
	ctx, cancel := b.bound(values, h.TTL)
	defer cancel()
	err := m.Release(ctx, h)
	m.note(err)
	return err
}

// cleanAll releases h everywhere, in the background.
func (b *Backend) cleanAll(values context.Context, h driver.Hold, kept time.Time) {
	for _, m := range b.members {
		b.clean(values, m, h, kept, nil)
	}
}
