package redislock

import (
	"context"

	"github.com/distlock/distlock/driver"
)

// Release ends a hold, in one round trip.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	err := b.check(h)
	if err == nil {
		err = b.abandoned.wait(ctx, h.Owner)
	}
	if err != nil {
		return err
	}
	if err := b.storage.Release(ctx, h); err != nil {
		return b.fail("release", h.Name, err)
	}
	return nil
}

// Release runs the script that releases.
func (s *scripted) Release(ctx context.Context, h driver.Hold) error {
	m, key := s.layout.Mode(h.Mode), s.layout.Prefix+h.Name
	c := newCommand(m.Keys(words(usualWords), key, h.Owner))
	c.words = m.ReleaseArgs(append(c.words, m.Field(h.Owner), m.Channel(key)), key)
	reply, err := s.run(ctx, s.scripts[h.Mode].release, c)
	if err == nil && reply == int64(0) {
		return driver.ErrLost
	}
	return err
}
