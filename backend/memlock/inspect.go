package memlock

import (
	"context"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Inspect returns the holders of name and its queue.
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
	l.expire(now)
	info.Holders = describe(l.holders, now)
	info.Waiters = describe(l.queue, now)
	info.WaiterCount = len(l.queue)
	if len(l.holders) > 0 {
		info.Mode = l.holders[0].mode
	}
	if info.Mode == driver.Counted {
		info.Limit = l.limit
	}
	sh.forgetIdle(name, l)
	return info, nil
}

func describe(entries []entry, now time.Duration) []driver.Holder {
	var holders []driver.Holder
	for _, e := range entries {
		holders = append(holders, e.describe(now))
	}
	return holders
}

// List yields the names that have holders or waiters. It may miss names that change
// meanwhile: it looks at one shard after the other.
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
		l.expire(now)
		if len(l.holders)+len(l.queue) > 0 && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		sh.forgetIdle(name, l)
	}
	return names
}
