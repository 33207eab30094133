package connlock

import (
	"context"
	"fmt"
	"time"
)

// orphan is a link that was given up, while the server may not have noticed: it may hold
// for an owner what that owner can't use.
type orphan struct {
	id    string
	until time.Time // the server has ended it by then
}

// trackOrphan notes which owners a dead link may hold for, and has it killed. b.mu is held.
func (b *Backend) trackOrphan(s *lockConn, owners []string) {
	g := &orphan{id: s.conn.ID(), until: time.Now().Add(s.lease + waitSlice + cleanupTime)}
	for owner, old := range b.orphans {
		if time.Now().After(old.until) {
			delete(b.orphans, owner)
		}
	}
	if b.closed || len(owners) == 0 {
		return
	}
	for _, owner := range owners {
		b.orphans[owner] = g
	}
	b.tasks.Go(func() { b.killOrphan(b.life, g) }) // if it fails, who needs it gone tries again
}

// killOrphan ends a ghost.
func (b *Backend) killOrphan(ctx context.Context, g *orphan) error {
	if time.Now().Before(g.until) {
		ctx, cancel := context.WithTimeout(ctx, cleanupTime)
		defer cancel()
		if err := b.Dialect.Kill(ctx, g.id); err != nil {
			return fmt.Errorf("a connection that was lost, and may have the lock, can't be ended: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for owner, old := range b.orphans {
		if old == g {
			delete(b.orphans, owner)
		}
	}
	return nil
}

// killOrphanOf makes sure that no lost link holds for an owner.
func (b *Backend) killOrphanOf(ctx context.Context, owner string) error {
	b.mu.Lock()
	g := b.orphans[owner]
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	return b.killOrphan(ctx, g)
}
