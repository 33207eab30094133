package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Release ends a hold, in one round trip. An abandoned attempt of its Owner, which may be on its way through another connection, does
// not delay it: what was held is released at once, and once more when that attempt is over.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	if err := b.check(h); err != nil {
		return err
	}
	late := b.abandoned.of(h.Owner)
	err := b.storage.Release(ctx, h)
	switch {
	case err == nil && late != nil:
		b.abandoned.later(func() { b.releaseAgain(late, h) })
	case errors.Is(err, driver.ErrLost) && late != nil:
		if err = over(ctx, late); err == nil {
			err = b.storage.Release(ctx, h)
		}
	}
	if err != nil {
		return b.fail("release", h.Name, err)
	}
	return nil
}

// releaseAgain releases what late attempts have taken after a release, within their TTL.
func (b *Backend) releaseAgain(late []<-chan struct{}, h driver.Hold) {
	if over(b.abandoned.ctx, late) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.abandoned.ctx, max(h.TTL, closeWait))
	defer cancel()
	for ctx.Err() == nil {
		if err := b.storage.Release(ctx, h); err == nil || errors.Is(err, driver.ErrLost) {
			return
		}
		wait.Sleep(ctx, releasePause)
	}
}

// releasePause is between the tries of a release that nobody waits for.
const releasePause = 200 * time.Millisecond

// Release runs the script that releases.
func (s *scripted) Release(ctx context.Context, h driver.Hold) error {
	m, key := s.layout.Mode(h.Mode), s.layout.Prefix+h.Name
	c := newCommand(m.Keys(words(usualWords), key, h.Owner))
	c.words = m.ReleaseArgs(append(c.words, m.Field(h.Owner), m.Channel(key)), key)
	switch reply, err := s.run(ctx, s.scripts[h.Mode].release, c); {
	case err != nil:
		return redisconn.MarkUnsent(err)
	case reply == int64(0):
		return driver.ErrLost
	case reply == int64(1):
		return nil
	}
	return redisconn.ErrUnexpected
}
