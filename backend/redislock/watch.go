package redislock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Watch subscribes to the channel on which a release is published. All watches of a backend share
// one connection to a server, and all watches of a lock share one subscription. A message wakes as
// many of them as it lets in: one, if the lock is exclusive. A watch that was woken and is closed
// before its owner has retried passes the message on.
//
// The queued waiters of a client have a channel for each lock, on which a message names the waiter. The
// subscription is kept for a while after the last one has left, so that the next Watch sends nothing.
// In the layout "redisson" each has a channel of its own, since Java publishes there, and waits on the
// lock's channel too, where Java's locks that are not fair publish.
//
// All watches are woken once a lost connection is back, since messages may have been missed. A hold
// that ends by its TTL publishes nothing: HeldError.Retry says when it ends.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	rec, err := b.recipe(r.Hold)
	if err != nil {
		return driver.Watch{}, err
	}
	name := b.prefix + r.Name
	_, braces := braced(name)
	w := &releaseWaiter{owner: r.Owner, alone: r.Queue && rec.ownChannels, braces: braces, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	if err := b.await(ctx, w, r.Name, rec.channelFor(name, r), rec.wakes); err != nil {
		return driver.Watch{}, err
	}
	if !w.alone {
		return driver.Watch{Ready: w.ready, Close: func() { b.releases.remove(w) }}, nil
	}
	java := &releaseWaiter{braces: braces, ready: w.ready, armed: make(chan error, 1)}
	if err := b.await(ctx, java, r.Name, rec.channel(name), rec.wakes); err != nil {
		b.releases.remove(w)
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: w.ready, Close: func() {
		b.releases.remove(java)
		b.releases.remove(w)
	}}, nil
}

// await arms w on a channel.
func (b *Backend) await(ctx context.Context, w *releaseWaiter, name, channel string, lets func(string) int) error {
	if err := b.releases.add(ctx, w, b.prefix+name, channel, lets); err != nil {
		return err
	}
	var err error
	select {
	case err = <-w.armed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.releases.remove(w)
		return watchError(name, err)
	}
	return nil
}

// watchError lets a user who may not subscribe poll.
func watchError(name string, err error) error {
	if re := (*redisconn.ReplyError)(nil); errors.As(err, &re) && re.HasCode("NOPERM") {
		return fmt.Errorf("%w: %w", driver.ErrSkip, re)
	}
	return fmt.Errorf("redislock: watch %s: %w", driver.Quote(name), err)
}
