package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/zk"
)

// Revoke asks a holder for its lock, as Curator's Revoker does: by the data of its node.
// Curator's own mutexes can be asked if they were made revocable.
func (b *Backend) Revoke(ctx context.Context, h driver.Hold) error {
	if err := b.check(h); err != nil {
		return err
	}
	err := b.revoke(ctx, h)
	if errors.Is(err, driver.ErrLost) {
		return err
	}
	if err != nil {
		return b.fail("revoke", h.Name, err)
	}
	return nil
}

func (b *Backend) revoke(ctx context.Context, h driver.Hold) error {
	s, err := b.any(ctx)
	if err != nil {
		return err
	}
	sight, err := b.see(ctx, s, h.Name)
	if err != nil {
		return err
	}
	n, is := sight.holder(h.Owner)
	if !is {
		return driver.ErrLost
	}
	if !readNote(n.node, n.data).Revocable {
		return fmt.Errorf("%w: the holder of %s has not agreed to be asked", driver.ErrUnsupported, driver.Quote(n.path))
	}
	_, err = s.conn.Set(ctx, n.path, []byte(revokeData), -1)
	if errors.Is(err, zk.ErrNoNode) {
		return driver.ErrLost
	}
	return err
}
