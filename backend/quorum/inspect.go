package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect returns the Owners that hold at a majority of the members. While members do not
// answer it also returns those that may hold, so that no holder stays hidden. Their fence is
// not known: each member knows only its own.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Info{Name: name}, err
	}
	defer b.tasks.Done()
	type report struct {
		answer
		info driver.Info
	}
	reports := make(chan report, len(b.members))
	for i, m := range b.members {
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			info, err := b.inspect(ctx, m, name)
			reports <- report{answer{i, err}, info}
		}()
	}
	s, t, pending := sightings{}, tally{of: len(b.members)}, b.allMembers()
	skips := 0
	for b.worthWaiting(pending.has) {
		select {
		case r := <-reports:
			pending[r.member] = false
			if errors.Is(r.err, driver.ErrSkip) {
				skips++
				continue
			}
			t.add(b.members[r.member], r.err)
			s.add(r.info)
		case <-ctx.Done():
			return driver.Info{Name: name}, fmt.Errorf("quorum: inspect %s: %w", driver.Quote(name), ctx.Err())
		}
	}
	switch {
	case skips > t.of-b.majority:
		return driver.Info{Name: name}, driver.ErrSkip
	case t.final > t.of-b.majority:
		return driver.Info{Name: name}, fmt.Errorf("quorum: inspect %s: %w", driver.Quote(name), t.finalErr)
	case t.yes < b.majority:
		return driver.Info{Name: name}, t.unknownErr("inspect", name)
	}
	return s.info(name, b.majority, t.of-t.yes), nil
}

func (b *Backend) inspect(values context.Context, m *member, name string) (driver.Info, error) {
	i, ok := m.Backend.(driver.Inspector)
	if !ok {
		return driver.Info{}, driver.ErrSkip
	}
	ctx, cancel := b.callContext(values, 0)
	defer cancel()
	info, err := i.Inspect(ctx, name)
	m.note(err)
	return info, err
}

// sightings are the members' reports of each holder, by Owner.
type sightings map[string][]driver.Holder

func (s sightings) add(info driver.Info) {
	for _, h := range info.Holders {
		s[h.Owner] = append(s[h.Owner], h)
	}
}

// info returns the Owners that hold at a majority, if the silent members have them too.
func (s sightings) info(name string, majority, silent int) driver.Info {
	info := driver.Info{Name: name}
	for _, seen := range s {
		if len(seen)+silent >= majority {
			info.Holders = append(info.Holders, mergeHolder(seen, majority))
		}
	}
	slices.SortFunc(info.Holders, func(a, b driver.Holder) int { return int(b.Held - a.Held) })
	if len(info.Holders) > 0 {
		info.Mode = info.Holders[0].Mode
	}
	return info
}

// mergeHolder returns one holder as a majority sees it. It has held since the first member
// granted, and holds until the remaining members are no majority.
func mergeHolder(seen []driver.Holder, majority int) driver.Holder {
	h := seen[0]
	h.Fence = 0
	left := make([]time.Duration, len(seen))
	modes := map[driver.Mode]int{}
	for i, o := range seen {
		h.Held = max(h.Held, o.Held)
		left[i] = o.Left
		// A downgrade may not have reached all yet.
		if modes[o.Mode]++; modes[o.Mode] > modes[h.Mode] {
			h.Mode = o.Mode
		}
	}
	slices.SortFunc(left, func(a, b time.Duration) int { return int(b - a) })
	h.Left = left[min(majority, len(left))-1]
	return h
}

// maxListed bounds the names that List keeps in memory.
const maxListed = 1 << 20

// List yields the names that are held at a majority of the members. While members do not
// answer it also yields those that may be. It collects the names in memory before it yields
// the first one, and returns ErrInvalid if there are more than a million: use a longer prefix then.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.tasks.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	l := &listing{count: map[string]int{}}
	answers := make(chan answer, len(b.members))
	for i, m := range b.members {
		b.tasks.Add(1)
		go func() {
			defer b.tasks.Done()
			answers <- answer{i, l.collect(ctx, m, prefix)}
		}()
	}
	t, skips := tally{of: len(b.members)}, 0
	for late := (<-chan time.Time)(nil); t.answered()+skips < t.of; {
		select {
		case a := <-answers:
			if errors.Is(a.err, errTooMany) {
				return a.err
			} else if errors.Is(a.err, driver.ErrSkip) {
				skips++
			} else {
				t.add(b.members[a.member], a.err)
			}
			if t.yes == b.majority {
				late = time.After(b.timeout(0))
			}
			continue
		case <-late:
		case <-ctx.Done():
			return fmt.Errorf("quorum: list: %w", ctx.Err())
		}
		break
	}
	switch {
	case skips > t.of-b.majority:
		return driver.ErrSkip
	case t.yes < b.majority:
		return t.unknownErr("list", prefix)
	}
	for _, name := range l.names(b.majority - (t.of - t.yes)) {
		if !yield(name) {
			break
		}
	}
	return nil
}

var errTooMany = fmt.Errorf("%w: quorum: list: more than %d names: want a longer prefix", driver.ErrInvalid, maxListed)

// listing counts the members that have each name.
type listing struct {
	mu    sync.Mutex
	count map[string]int
}

// collect adds the names that a member lists, until ctx ends.
func (l *listing) collect(ctx context.Context, m *member, prefix string) error {
	i, ok := m.Backend.(driver.Inspector)
	if !ok {
		return driver.ErrSkip
	}
	full := false
	err := i.List(ctx, prefix, func(name string) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.count[name]++
		full = len(l.count) > maxListed
		return !full && ctx.Err() == nil
	})
	switch {
	case full:
		return errTooMany
	case err == nil:
		err = ctx.Err()
	}
	return err
}

// names returns the names that at least n members have.
func (l *listing) names(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name, count := range l.count {
		if count >= n {
			names = append(names, name)
		}
	}
	return names
}
