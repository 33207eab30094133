package redislock

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/plain"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// uncontended is scripted, but takes and releases free locks of the layout "string", exclusive ones and writers', by plain
// commands. Scripts do all else: they find what these have left.
type uncontended struct {
	*scripted
	commands  plain.Commands
	contended contendedNames
	delete    atomic.Uint32 // a plain.DeleteCommand
}

func newUncontended(b *Backend) *uncontended {
	return &uncontended{
		scripted:  newScripted(b),
		commands:  plain.Commands{Client: b.client, PubSub: b.pubsub, Layout: b.layout},
		contended: contendedNames{seed: maphash.MakeSeed(), began: time.Now()},
	}
}

// Acquire makes one attempt. It takes a free lock in one round trip, and so it does for a name that was contended lately. The
// first attempt runs a script: a user who may not do that is told at once, and not by a renewal.
func (s *uncontended) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if !r.Mode.Alone() || !s.acquires.Load() || s.contended.has(r.Name) {
		return s.acquireContended(ctx, r)
	}
	taken, err := s.commands.Take(ctx, r)
	switch {
	case err != nil && taken.Outcome == plain.Held:
		return driver.Grant{}, err
	case err != nil:
		return driver.Grant{TTL: r.TTL}, err
	case taken.Outcome == plain.Granted:
		return s.layout.Grant(r, taken.ID)
	case taken.Outcome == plain.Queued:
		if err := s.scripted.Release(ctx, r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
			return driver.Grant{TTL: r.TTL}, err
		}
	}
	return s.acquireContended(ctx, r)
}

// acquireContended runs the script that acquires, and remembers a name that is refused: until the place in the queue that the
// attempt may have got ends.
func (s *uncontended) acquireContended(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.scripted.Acquire(ctx, r)
	if err == nil && !s.acquires.Load() {
		s.acquires.Store(true)
	}
	if errors.Is(err, driver.ErrHeld) {
		s.contended.add(r.Name, rememberContended+r.TTL)
	}
	return g, err
}

// Release ends a hold. Where the server has a command for that, one that was not renewed is deleted without a script.
func (s *uncontended) Release(ctx context.Context, h driver.Hold) error {
	given, queued := false, false
	if by := s.deleteBy(ctx); h.Mode.Alone() && by != plain.DeleteByScript {
		var err error
		if given, queued, err = s.commands.Give(ctx, h, by); err != nil {
			return redisconn.MarkUnsent(err)
		}
	}
	if given && !queued {
		return nil
	}
	err := s.scripted.Release(ctx, h) // notifies the first in the queue, even if nothing is held any more
	switch {
	case given && errors.Is(err, driver.ErrLost):
		return nil
	case given && err != nil:
		return errors.New(err.Error()) // the deletion was sent, though the script may not have been
	}
	return err
}

// deleteBy returns how a lock is deleted. It asks the server the first time.
func (s *uncontended) deleteBy(ctx context.Context) plain.DeleteCommand {
	by := plain.DeleteCommand(s.delete.Load())
	if by != plain.DeleteUnknown {
		return by
	}
	by, err := plain.FindDelete(ctx, s.client)
	if err != nil {
		return plain.DeleteByScript // this time
	}
	s.delete.Store(uint32(by))
	return by
}

// rememberContended is for how long a refused name is remembered at least.
const rememberContended = time.Second

// contendedNames remembers names for some time, by their hash: a name may be taken for another.
type contendedNames struct {
	seed  maphash.Seed
	began time.Time
	until [1024]atomic.Int64 // since began
}

func (c *contendedNames) slot(name string) *atomic.Int64 {
	return &c.until[maphash.String(c.seed, name)%uint64(len(c.until))]
}

// has reports whether a name is remembered.
func (c *contendedNames) has(name string) bool {
	until := c.slot(name).Load()
	return until > 0 && int64(time.Since(c.began)) < until
}

// add remembers a name for at least d.
func (c *contendedNames) add(name string, d time.Duration) {
	slot, until := c.slot(name), int64(time.Since(c.began)+d)
	for was := slot.Load(); was < until && !slot.CompareAndSwap(was, until); was = slot.Load() {
	}
}
