package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect tells who holds at a majority of the members. While members do not answer it
// also tells who may, so that nobody is hidden who is in the way. The fence is not known:
// each member knows its own.
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
	s, t, pending := sightings{}, tally{of: len(b.members)}, b.everyone()
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
		return driver.Info{Name: name}, t.unknown("inspect", name)
	}
	return s.info(name, b.majority, t.of-t.yes), nil
}

func (b *Backend) inspect(values context.Context, m *member, name string) (driver.Info, error) {
	i, ok := m.Backend.(driver.Inspector)
	if !ok {
		return driver.Info{}, driver.ErrSkip
	}
	ctx, cancel := b.bound(values, 0)
	defer cancel()
	info, err := i.Inspect(ctx, name)
	m.note(err)
	return info, err
}

// sightings are what members said of each holder, by Owner.
type sightings map[string][]driver.Holder

func (s sightings) add(info driver.Info) {
	for _, h := range info.Holders {
		s[h.Owner] = append(s[h.Owner], h)
	}
}

// info tells of those who hold at a majority, if so many members that said nothing have
// the same to say.
func (s sightings) info(name string, majority, unheard int) driver.Info {
	info := driver.Info{Name: name}
	for _, seen := range s {
		if len(seen)+unheard >= majority {
			info.Holders = append(info.Holders, merged(seen, majority))
		}
	}
	slices.SortFunc(info.Holders, func(a, b driver.Holder) int { return int(b.Held - a.Held) })
	if len(info.Holders) > 0 {
		info.Mode = info.Holders[0].Mode
	}
	return info
}

// merged is one holder as a majority sees it: there from when the first member granted,
// and until so many have let go that the rest is no majority.
func merged(seen []driver.Holder, majority int) driver.Holder {
	h := seen[0]
	h.Fence = 0
	left := make([]time.Duration, len(seen))
	modes := map[driver.Mode]int{}
	for i, o := range seen {
		h.Held = max(h.Held, o.Held)
		left[i] = o.Left
		// A downgrade may not have come to all yet.
		if modes[o.Mode]++; modes[o.Mode] > modes[h.Mode] {
			h.Mode = o.Mode
		}
	}
	slices.SortFunc(left, func(a, b time.Duration) int { return int(b - a) })
	h.Left = left[min(majority, len(left))-1]
	return h
}
