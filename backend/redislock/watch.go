package redislock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Watch subscribes to the channel on which the end of a hold is published. All watches
// of a backend share one connection, and those of a lock one subscription. A message
// wakes as many of them as it lets in: one, if the lock is exclusive. One that was
// woken and leaves without having asked again hands the message on. Whoever stands in
// line has a channel of its own.
//
// When the connection was lost and is back, all are woken, since messages may have
// been missed. A hold that ends by its TTL sends no message: HeldError.Retry says when.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	rec, err := b.recipe(r.Hold)
	if err != nil {
		return driver.Watch{}, err
	}
	_, braces := braced(b.prefix + r.Name)
	w := &watch{owner: r.Owner, alone: r.Queue, braces: braces, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	name := b.prefix + r.Name
	if err := b.hub.add(ctx, w, name, topic{rec.waitsOn(name, r), rec.wakes}); err != nil {
		return driver.Watch{}, err
	}
	select {
	case err = <-w.armed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.hub.remove(w)
		return driver.Watch{}, watchError(r.Name, err)
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.hub.remove(w) }}, nil
}

// topic is what a watch listens to.
type topic struct {
	name  string
	wakes func(message string) int
}

// watchError: who may not subscribe must poll.
func watchError(name string, err error) error {
	if re := (*redisconn.ReplyError)(nil); errors.As(err, &re) && re.HasCode("NOPERM") {
		return fmt.Errorf("%w: %w", driver.ErrSkip, re)
	}
	return fmt.Errorf("redislock: watch %s: %w", driver.Quote(name), err)
}

// watch is one armed wait. All but the Go channels is guarded by the hub's mutex.
type watch struct {
	owner   string
	channel *channel
	ready   chan struct{} // holds a signal that was not taken yet
	armed   chan error    // gets one answer
	isArmed bool
	alone   bool // its channel is of no use to another
	braces  bool // it waits for {a}, whose channel is that of a
	woken   bool // and has not asked since
}

func (w *watch) arm(err error) {
	if !w.isArmed {
		w.isArmed = true
		w.armed <- err
	}
}

// wake reports whether w had no signal yet.
func (w *watch) wake() bool {
	select {
	case w.ready <- struct{}{}:
		w.woken = true
		return true
	default:
		return false
	}
}

// channel is a subscription and those who use it.
type channel struct {
	topic
	key     string   // of the lock
	at      *station // where it is heard
	watches []*watch
	asked   bool // SUBSCRIBE was sent on the present connection
	live    bool // and confirmed
	idle    int  // how many rounds it has had no watch
}

// wake wakes up to n watches that have no signal yet, the oldest first; where some stand
// in line and some do not, so many of each, and so many for each of the locks a and {a},
// since a message does not say which of them it is about.
func (c *channel) wake(n int) {
	type kind struct{ alone, braces bool }
	woken := map[kind]int{}
	for _, w := range c.watches {
		k := kind{w.alone, w.braces}
		if woken[k] < n && w.wake() {
			woken[k]++
		}
	}
}

// fail gives those up who are not armed yet.
func (c *channel) fail(err error) {
	for _, w := range c.watches {
		w.arm(err)
	}
}

// confirmed: those who wait for the subscription have it now; those who had it
// before may have missed messages.
func (c *channel) confirmed() {
	c.live = true
	for _, w := range c.watches {
		if w.isArmed {
			w.wake()
		}
		w.arm(nil)
	}
}
