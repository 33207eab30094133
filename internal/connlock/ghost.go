package connlock

import (
	"context"
	"fmt"
	"time"
)

// ghost is a link that was given up, while the server may not have noticed: it may hold
// for an owner what that owner can't use.
type ghost struct {
	id    string
	until time.Time // the server has ended it by then
}

// haunt notes which owners a dead link may hold for, and has it killed. b.mu is held.
func (b *Backend) haunt(s *session, owners []string) {
	g := &ghost{id: s.link.ID(), until: time.Now().Add(s.lease + slice + lastResort)}
	for owner, old := range b.ghosts {
		if time.Now().After(old.until) {
			delete(b.ghosts, owner)
		}
	}
	if b.closed || len(owners) == 0 {
		return
	}
	for _, owner := range owners {
		b.ghosts[owner] = g
	}
	b.tasks.Go(func() { b.lay(b.life, g) }) // if it fails, who needs it gone tries again
}

// lay ends a ghost.
func (b *Backend) lay(ctx context.Context, g *ghost) error {
	if time.Now().Before(g.until) {
		ctx, cancel := context.WithTimeout(ctx, lastResort)
		defer cancel()
		if err := b.Dialect.Kill(ctx, g.id); err != nil {
			return fmt.Errorf("a connection that was lost, and may have the lock, can't be ended: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for owner, old := range b.ghosts {
		if old == g {
			delete(b.ghosts, owner)
		}
	}
	return nil
}

// exorcise makes sure that no lost link holds for an owner.
func (b *Backend) exorcise(ctx context.Context, owner string) error {
	b.mu.Lock()
	g := b.ghosts[owner]
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	return b.lay(ctx, g)
}
