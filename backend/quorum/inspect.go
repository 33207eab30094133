package quorum

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect returns the Owners that hold at a majority of the members. While members do not
// answer it also returns those that may hold, so that no holder stays hidden. Their fence is
// not known: each member knows only its own.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if err := b.calls.Begin(ctx); err != nil {
		return driver.Info{Name: name}, err
	}
	defer b.calls.End()
	infos := make([]driver.Info, len(b.members))
	p := b.poll(func(i int, m *member) (err error) {
		ctx, cancel := b.callContext(ctx, 0)
		defer cancel()
		infos[i], err = m.Inspect(ctx, name)
		m.note(err)
		return err
	})
	for p.next(ctx, nil) {
	}
	if ctx.Err() != nil {
		return driver.Info{Name: name}, fmt.Errorf("quorum: inspect %s: %w", driver.Quote(name), ctx.Err())
	}
	if err := p.result("inspect", name, b.majority); err != nil {
		return driver.Info{Name: name}, err
	}
	s := sightings{}
	for i, pending := range p.pending {
		if !pending {
			s.add(infos[i])
		}
	}
	return s.info(name, b.majority, p.of-p.yes), nil
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
	slices.SortFunc(info.Holders, func(a, b driver.Holder) int { return cmp.Compare(b.Held, a.Held) })
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
	for i, o := range seen {
		h.Held = max(h.Held, o.Held)
		left[i] = o.Left
		if h.Meta == nil {
			h.Meta = o.Meta // a vote that was won back may have none
		}
	}
	slices.SortFunc(left, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	h.Left = left[min(majority, len(left))-1]
	return h
}

// List yields the names that are held at a majority of the members. While members do not
// answer it also yields those that may be. It collects the names in memory before it yields
// the first one.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.calls.Begin(ctx); err != nil {
		return err
	}
	defer b.calls.End()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	var mu sync.Mutex
	count := map[string]int{} // members that have a name
	p := b.poll(func(_ int, m *member) error {
		err := m.List(ctx, prefix, func(name string) bool {
			mu.Lock()
			defer mu.Unlock()
			count[name]++
			return ctx.Err() == nil
		})
		return cmp.Or(err, ctx.Err())
	})
	for late := (<-chan time.Time)(nil); p.next(ctx, late); {
		if p.yes == b.majority {
			late = time.After(b.timeout(0))
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("quorum: list: %w", ctx.Err())
	}
	if err := p.result("list", prefix, b.majority); err != nil {
		return err
	}
	mu.Lock()
	maps.DeleteFunc(count, func(_ string, n int) bool { return n < b.majority-(p.of-p.yes) })
	names := slices.Collect(maps.Keys(count))
	mu.Unlock()
	for _, name := range names {
		if !yield(name) {
			break
		}
	}
	return nil
}
