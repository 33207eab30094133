package memlock

import (
	"context"
	"slices"
	"sync"

	"github.com/distlock/distlock/driver"
)

// watch is one request that waits to be signalled.
type watch struct {
	by    *Backend
	owner string
	mode  driver.Mode
	limit int
	ready chan struct{} // holds one signal: more would tell nothing new
}

// Watch signals releases, leavings and downgrades that let r in. Those who stand in
// line behind others are not woken before it is their turn.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	w := &watch{by: b, owner: r.Owner, mode: r.Mode, limit: r.Limit, ready: make(chan struct{}, 1)}
	sh := b.store.shard(r.Name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// Asked under the mutex, so that Close drops this watch or is seen here.
	if err := b.usable(ctx); err != nil {
		return driver.Watch{}, err
	}
	l := sh.open(r.Name, b.store.now())
	l.watches = append(l.watches, w)
	return driver.Watch{Ready: w.ready, Close: sync.OnceFunc(func() { sh.drop(r.Name, w) })}, nil
}

func (sh *shard) drop(name string, w *watch) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[name]
	if l == nil {
		return
	}
	if i := slices.Index(l.watches, w); i >= 0 {
		l.watches = slices.Delete(l.watches, i, i+1)
		sh.settle(name, l)
	}
}

// endsWith reports whether w goes when b closes, and lets its waiter find that out.
func (w *watch) endsWith(b *Backend) bool {
	if w.by == b {
		w.signal()
		return true
	}
	return false
}

func (w *watch) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// wake signals those who would be let in now.
func (l *lock) wake() {
	for _, w := range l.watches {
		if l.admits(w.owner, w.mode, w.limit) {
			w.signal()
		}
	}
}

// wakeAll signals all: what they were told about the time left is no longer true.
func (l *lock) wakeAll() {
	for _, w := range l.watches {
		w.signal()
	}
}
