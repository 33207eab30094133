package record

import (
	"context"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Inspect reads the record of name. What it sees counts for the end of the hold as what an attempt sees.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Info, error) {
	info := driver.Info{Name: name, WaiterCount: -1}
	if err := b.usable(ctx); err != nil {
		return info, wrap("inspect", name, err)
	}
	s, err := b.read(ctx, name)
	if err != nil {
		return info, wrap("inspect", name, err)
	}
	if now := b.now(); !s.free(now) {
		info.Mode, info.Holders = driver.Exclusive, []driver.Holder{b.holder(s, now)}
	}
	return info, nil
}

// List yields the names whose record has a holder, also one whose process died.
func (b *Backend) List(ctx context.Context, prefix string, yield func(name string) bool) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	return b.store.List(ctx, prefix, func(name string, r Record) bool { return r.Holder == "" || yield(name) })
}

// Pushing is a Backend of a Store that is a Watcher. A Backend of another one is no driver.Watcher, so that its waiters poll.
type Pushing struct{ *Backend }

// Watch signals when r.Name has become free. What the store tells is remembered as if it had been
// read, so that an attempt writes at once, and a hold whose process died ends a TTL after its last renewal.
func (b Pushing) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.usable(ctx); err != nil {
		return driver.Watch{}, wrap("watch", r.Name, err)
	}
	ready := wait.NewSignal()
	stop, err := b.store.(Watcher).Watch(ctx, r.Name, func(now Record) {
		if s, _ := b.memory.seen.get(r.Name); now.Stamp > s.Stamp { // it may be older than what was read meanwhile
			b.memory.saw(r.Name, now, b.now())
		}
		if now.Holder == "" {
			ready.Notify()
		}
	})
	return driver.Watch{Ready: ready, Close: stop}, wrap("watch", r.Name, err)
}
