package memlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
)

// AcquireAll takes all locks in one step, or none.
func (b *Backend) AcquireAll(ctx context.Context, rs []driver.Request) ([]driver.Grant, error) {
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	rs = slices.Clone(rs)
	names := map[string]bool{}
	for i := range rs {
		rs[i].Queue = false
		if err := valid(&rs[i]); err != nil {
			return nil, err
		}
		names[rs[i].Name] = true
	}
	if len(names) < len(rs) {
		return nil, fmt.Errorf("%w: one lock is asked for twice", driver.ErrInvalid)
	}
	defer b.store.lockShards(rs)()
	return b.store.acquireAll(rs)
}

// acquireAll looks at all before it grants any. The shards' mutexes are held.
func (s *Store) acquireAll(rs []driver.Request) ([]driver.Grant, error) {
	now := s.now()
	for i := range rs {
		err := s.enter(rs[i].Name, now, func(l *lock) error { _, err := l.judge(&rs[i], now); return err })
		if held, ok := errors.AsType[*driver.HeldError](err); ok {
			held.Name = rs[i].Name
		}
		if err != nil {
			return nil, err
		}
	}
	grants := make([]driver.Grant, len(rs))
	for i := range rs {
		err := s.enter(rs[i].Name, now, func(l *lock) (err error) { grants[i], err = l.acquire(&rs[i], now); return err })
		if err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// enter runs f on a lock whose shard's mutex is held.
func (s *Store) enter(name string, now time.Duration, f func(*lock) error) error {
	sh := s.shard(name)
	l := sh.open(name, now)
	defer sh.settle(name, l)
	return f(l)
}

// lockShards locks the shards of all requests, always in the same order.
func (s *Store) lockShards(rs []driver.Request) (unlock func()) {
	var in [shards]bool
	for i := range rs {
		in[s.index(rs[i].Name)] = true
	}
	each := func(f func(*shard)) {
		for i := range in {
			if in[i] {
				f(&s.shards[i])
			}
		}
	}
	each(func(sh *shard) { sh.mu.Lock() })
	return func() { each(func(sh *shard) { sh.mu.Unlock() }) }
}
