package memlock

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect tells who holds name and who stands in line for it.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info := driver.Info{Name: name}
	if err := b.usable(ctx); err != nil {
		return info, err
	}
	sh := b.store.shard(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[name]
	if l == nil {
		return info, nil
	}
	now := b.store.now()
	l.sweep(now)
	info.Holders = tell(l.holders, now)
	info.Waiters = tell(l.line, now)
	info.WaiterCount = len(l.line)
	if len(l.holders) > 0 {
		info.Mode = l.holders[0].mode
	}
	if info.Mode == driver.Counted {
		info.Limit = l.limit
	}
	sh.settle(name, l)
	return info, nil
}

// List yields the names that are held or waited for. It works shard by shard: names
// taken or left meanwhile may be missed.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	for i := range b.store.shards {
		if err := b.usable(ctx); err != nil {
			return err
		}
		for _, name := range b.store.shards[i].names(prefix, b.store.now()) {
			if !yield(name) {
				return nil
			}
		}
	}
	return b.usable(ctx)
}

func (sh *shard) names(prefix string, now time.Duration) []string {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var names []string
	for name, l := range sh.locks {
		l.sweep(now)
		if len(l.holders)+len(l.line) > 0 && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		sh.settle(name, l)
	}
	return names
}

func tell(claims []claim, now time.Duration) []driver.Holder {
	var told []driver.Holder
	for _, c := range claims {
		told = append(told, c.tell(now))
	}
	return told
}

func (c claim) tell(now time.Duration) driver.Holder {
	return driver.Holder{
		Owner: c.owner, Mode: c.mode, Fence: c.fence,
		Held: now - c.since, Left: c.until - now,
		Meta: maps.Clone(c.meta),
	}
}
