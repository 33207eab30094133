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
		freed, waited, err := b.dialect.Free(ctx, Held{k, h.Owner})
		if freed {
			b.freed(k, waited)
		}
		if freed || err != nil {
			return err
		}
	}
	return b.change(ctx, h.Name, func(s *state) verdict {
		if !s.remove(h.Owner) {
			return verdict{err: driver.ErrLost}
		}
		return verdict{write: true, frees: true}
	})
}
