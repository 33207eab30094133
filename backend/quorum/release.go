package quorum

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

const (
	// defaultTTL bounds the retries of a release whose hold has an unknown TTL.
	defaultTTL = 30 * time.Second

	// A silent member gets one pending release at a time, after pauses from firstRetry, doubled
	// each time, up to longestRetry. One that is back gets parallelReleases at once.
	firstRetry       = 10 * time.Millisecond
	longestRetry     = time.Second
	parallelReleases = 16
)

// Release ends Owner's hold at all members. It returns once a majority has released it, which
// suffices for the next holder. The other members get a moment more, since remaining votes
// make it more likely that the next vote is split. Members that do not answer are retried
// in the background until they do or the TTL has passed.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	if err := b.checkMode(h.Mode); err != nil {
		return err
	}
	kept := b.holds.remove(h.Owner)
	answers := make(chan answer, len(b.members))
	for i, m := range b.members {
		b.release(ctx, m, h, kept, func(err error) { answers <- answer{i, err} })
	}
	t, pending := tally{of: len(b.members)}, b.allMembers()
	start, late := time.Now(), (<-chan time.Time)(nil)
	for b.worthWaiting(pending.has) {
		if late == nil && t.releaseDecided(b.majority) {
			late = time.After(b.linger(start, h.TTL))
		}
		select {
		case a := <-answers:
			pending[a.member] = false
			t.add(b.members[a.member], a.err)
			continue
		case <-late:
		case <-ctx.Done():
			if late == nil {
				return fmt.Errorf("quorum: release %s: %w", driver.Quote(h.Name), ctx.Err())
			}
		}
		break
	}
	return b.releaseResult(h, &t)
}

// linger returns how long to wait for the other members after a decision.
func (b *Backend) linger(start time.Time, ttl time.Duration) time.Duration {
	return min(10*time.Millisecond+time.Since(start), b.timeout(ttl)/4)
}

// releaseDecided reports whether more answers would not change the result.
func (t *tally) releaseDecided(majority int) bool {
	return t.yes >= majority || t.lost > t.of-majority || t.final > t.of-majority
}

// releaseResult returns nil if a majority has released. It returns ErrLost if so many members
// did not have the hold that Owner can't have had a majority. Between the two the outcome is
// unknown: Owner may have held when the release began, or a successor may have been granted
// by the members that reported ErrLost and those that were silent. A repeated release
// returns ErrLost.
func (b *Backend) releaseResult(h driver.Hold, t *tally) error {
	switch {
	case t.lost > t.of-b.majority:
		return fmt.Errorf("quorum: %s: %w", driver.Quote(h.Name), driver.ErrLost)
	case t.yes >= b.majority:
		return nil
	case t.final > t.of-b.majority:
		return fmt.Errorf("quorum: release %s: %w", driver.Quote(h.Name), t.finalErr)
	}
	return t.unknownErr("release", h.Name)
}

// releaseAll releases h at all members in the background.
func (b *Backend) releaseAll(values context.Context, h driver.Hold, kept time.Time) {
	for _, m := range b.members {
		b.release(values, m, h, kept, func(error) {})
	}
}

// release releases h at m in the background. If m does not answer, it retries until m answers,
// m keeps the hold no longer, or the Owner is requested again. done gets the first answer.
func (b *Backend) release(values context.Context, m *member, h driver.Hold, kept time.Time, done func(error)) {
	ttl := h.TTL
	if ttl <= 0 {
		ttl = defaultTTL
	}
	end := later(b.endAtMembers(ttl), kept)
	b.send(m, forRelease, []string{h.Owner}, func(replaced bool) {
		if replaced { // the later call releases too, or wants to keep the hold
			done(errReplaced)
			return
		}
		err := b.callRelease(values, m, h)
		if isUnknown(err) {
			b.retryRelease(m, h, end)
		} else {
			m.releases.remove(h.Owner)
		}
		done(err)
	})
}

func (b *Backend) callRelease(values context.Context, m *member, h driver.Hold) error {
	ctx, cancel := b.callContext(values, h.TTL)
	defer cancel()
	err := m.Release(ctx, h)
	m.note(err)
	return err
}

// retryRelease releases h at m in the background, until end. The caller has begun a task.
func (b *Backend) retryRelease(m *member, h driver.Hold, end time.Time) {
	if m.releases.add(h, end) {
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			b.retryReleases(m)
		}()
	}
}

// retryReleases runs until m has no pending releases. When the backend closes it tries once more.
func (b *Backend) retryReleases(m *member) {
	n, try := 1, 0
	for {
		closing := n == 1 && wait.Sleep(b.open, wait.Jitter(wait.Backoff(try, firstRetry, longestRetry))) != nil
		holds := m.releases.next(n)
		switch {
		case len(holds) == 0:
			return
		case b.tryReleases(m, holds):
			n, try = parallelReleases, 0
		case closing:
			return
		default:
			n, try = 1, try+1
		}
	}
}

// tryReleases releases holds at m, and reports whether m answered at least one.
func (b *Backend) tryReleases(m *member, holds []driver.Hold) bool {
	var wg sync.WaitGroup
	var answered atomic.Bool
	for _, h := range holds {
		wg.Add(1)
		b.send(m, forRetry, []string{h.Owner}, func(bool) {
			defer wg.Done()
			if !m.releases.has(h.Owner) {
				return // the Owner was requested again
			}
			if !isUnknown(b.callRelease(context.Background(), m, h)) {
				m.releases.remove(h.Owner)
				answered.Store(true)
			}
		})
	}
	wg.Wait()
	return answered.Load()
}
