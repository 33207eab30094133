package redislock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/driver"
)

// Release ends a hold, in one round trip.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	rec, err := b.recipe(h)
	if err == nil {
		err = b.abandoned.wait(ctx, h.Owner)
	}
	if err != nil {
		return err
	}
	if err := b.storage.release(ctx, rec, h); err != nil {
		return b.fail("release", h.Name, err)
	}
	return nil
}

// release runs the script that releases.
func (s scripted) release(ctx context.Context, rec *recipe, h driver.Hold) error {
	name := s.prefix + h.Name
	c := newCall(rec.keys(words(usualWords), name, h.Owner))
	c.add(rec.field(h.Owner), rec.channel(name))
	if rec.releaseArgs != nil {
		c.add(rec.releaseArgs(name)...)
	}
	reply, err := s.run(ctx, rec.release, c)
	if err == nil && reply == int64(0) {
		return driver.ErrLost
	}
	return err
}

// giveBack releases a lock that is of no use because of cause. If the release fails, the core
// repeats it: then no error may be final, since that would say that nothing was acquired.
func giveBack(ctx context.Context, s storage, rec *recipe, r driver.Request, cause error) error {
	if err := s.release(ctx, rec, r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
		cause = fmt.Errorf("%v; it is not certain that it was released: %v", cause, err)
	}
	return driver.Spent(cause)
}
