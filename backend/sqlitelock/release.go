package sqlitelock

import (
	"context"
	"database/sql"
	"errors"

	"github.com/distlock/distlock/driver"
)

// Release ends a hold or a place in the queue, with a single statement.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	err := b.w.do(ctx, true, func(t *tx) error { return t.delete(h) })
	return b.wrap("release", h.Name, err)
}

func (t *tx) delete(h driver.Hold) error {
	now := t.clock.now()
	var until int64
	err := t.release.QueryRowContext(context.Background(), h.Name, h.Owner).Scan(&until)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return driver.ErrLost
	case err != nil:
		return err
	}
	t.freed = append(t.freed, h.Name)
	if until <= now {
		return driver.ErrLost
	}
	return nil
}
