package memlock

import (
	"context"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

// Revoke asks h.Owner for its lock, once.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.usable(ctx); err != nil {
		return err
	}
	var ask func()
	err := b.change(h.Name, func(l *lock, _ time.Duration) (err error) {
		ask, err = l.ask(h)
		return err
	})
	if ask != nil {
		ask()
	}
	return err
}

// ask is what tells h.Owner that its lock is wanted; nil if it was told.
func (l *lock) ask(h driver.Hold) (func(), error) {
	i := find(l.holders, h.Owner)
	switch {
	case i < 0:
		return nil, lost(h.Name)
	case l.holders[i].onRevoke == nil:
		return nil, fmt.Errorf("memlock: %w: the holder of %s has not agreed to be asked for it", driver.ErrUnsupported, driver.Quote(h.Name))
	case l.holders[i].asked:
		return nil, nil
	}
	l.holders[i].asked = true
	return l.holders[i].onRevoke, nil
}
