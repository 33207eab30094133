package sqlrow

import (
	"context"

	"github.com/distlock/distlock/driver"
)

// Release ends a hold or a place in line. A hold that excludes all others needs one
// statement.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	return b.wrap("release", h.Name, b.release(ctx, h))
}

func (b *Backend) release(ctx context.Context, h driver.Hold) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	k := KeyOf(h.Name)
	if h.Mode.Alone() {
		freed, waited, err := b.dialect.Free(ctx, HoldKey{k, h.Owner})
		if freed {
			b.announce(k, waited)
		}
		if freed || err != nil {
			return err
		}
	}
	return b.change(ctx, h.Name, func(s *state) decision {
		if !s.remove(h.Owner) {
			return decision{err: driver.ErrLost}
		}
		return decision{write: true, frees: true}
	})
}
