package quorum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	// defaultTTL bounds the retries of a release whose hold has an unknown TTL.
	defaultTTL = 30 * time.Second

	// A silent member gets one pending release at a time, after pauses from firstRetry, doubled
	// each time, up to longestRetry. One that is back gets them without pauses.
	firstRetry   = 10 * time.Millisecond
	longestRetry = time.Second
)

// Release ends Owner's hold at all members. It returns once a majority has released it, which
// suffices for the next holder. The other members get a moment more, since remaining votes
// make it more likely that the next vote is split. Members that do not answer are retried
// in the background until they do or the TTL has passed.
//
// The result is ErrLost if so many members did not have the hold that Owner can't have had a
// majority. If there is no majority for either the outcome is unknown: Owner may have held when the
// release began, or a successor may have been granted by the members that reported ErrLost and
// those that were silent. A repeated release returns nil if a majority has released meanwhile, and else ErrLost.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	kept, p := b.holds.remove(h.Owner), b.newPoll()
	for i, m := range b.members {
		b.release(ctx, m, h, kept, func(err error) { p.answers <- answer{i, err} })
	}
	start, late := time.Now(), (<-chan time.Time)(nil)
	for p.next(ctx, late) {
		if late == nil && p.releaseDecided(b.majority) {
			late = time.After(b.linger(start, h.TTL))
		}
	}
	for _, m := range b.members {
		if late != nil {
			m.releases.told(h.Owner)
		}
	}
	switch {
	case late == nil && ctx.Err() != nil:
		return fmt.Errorf("quorum: release %s: %w", driver.Quote(h.Name), ctx.Err())
	case p.yes+p.ended >= b.majority:
		return nil
	case p.lost > p.of-b.majority:
		return fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
	}
	p.unsent = 0 // what a member did not receive is sent again in the background
	return p.unknownErr("release", h.Name)
}

// linger returns how long to wait for the other members after a decision.
func (b *Backend) linger(start time.Time, ttl time.Duration) time.Duration {
	return min(10*time.Millisecond+time.Since(start), b.timeout(ttl)/4)
}

// releaseDecided reports whether more answers would not change the result.
func (t *tally) releaseDecided(majority int) bool {
	return t.yes+t.ended >= majority || t.lost > t.of-majority
}

// isReleased reports whether a release is done. Whatever else a member says, it may have the hold.
func isReleased(err error) bool { return err == nil || errors.Is(err, driver.ErrLost) }

// release releases h at m in the background. If m does not answer, it retries until m answers,
// m keeps the hold no longer, or the Owner is requested again. done gets the first answer.
func (b *Backend) release(values context.Context, m *member, h driver.Hold, kept time.Time, done func(error)) {
	ttl := h.TTL
	if ttl <= 0 {
		ttl = defaultTTL
	}
	end := later(b.endAtMembers(ttl), kept)
	if m.Caps().Session {
		end = time.Time{}
	}
	b.send(m, []string{h.Owner}, func(c *queuedCall) {
		err := errReplaced
		if !m.queue.isReplaced(c) {
			err = b.callRelease(values, m, h)
		}
		switch {
		case isReleased(err):
			m.releases.remove(h.Owner)
		case m.releases.add(h, end):
			b.calls.Go(func() { b.retryReleases(m) })
		}
		done(err)
	})
}

func (b *Backend) callRelease(values context.Context, m *member, h driver.Hold) error {
	ctx, cancel := b.callContext(values, h.TTL)
	defer cancel()
	err := m.Release(ctx, h)
	m.note(err)
	return m.releases.answered(h, err)
}

// retryReleases runs until m has no pending releases. When the backend closes it tries once more.
func (b *Backend) retryReleases(m *member) {
	for try := 0; ; try++ {
		closing := wait.Sleep(b.calls.Life, wait.Jitter(wait.Backoff(try, firstRetry, longestRetry))) != nil
		for answered := true; answered; {
			h, ok := m.releases.next()
			if !ok {
				return
			}
			if answered = b.retryRelease(m, h); answered {
				try = 0
			}
		}
		if closing {
			return
		}
	}
}

// retryRelease releases h at m, and reports whether m answered.
func (b *Backend) retryRelease(m *member, h driver.Hold) (answered bool) {
	done := make(chan struct{})
	b.send(m, []string{h.Owner}, func(*queuedCall) {
		defer close(done)
		// If it is not pending any more, the Owner was requested again.
		answered = !m.releases.has(h.Owner) || isReleased(b.callRelease(context.Background(), m, h))
		if answered {
			m.releases.remove(h.Owner)
		}
	})
	<-done
	return answered
}
