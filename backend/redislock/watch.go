package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// PubSub says how a release is published. All users of a lock must agree on it: a waiter that uses
// another way is not notified, and polls.
type PubSub string

// The choices. They are Redisson's.
const (
	// PubSubAuto is the default: sharded in a cluster whose servers know it and let their
	// user ask (PUBSUB SHARDNUMSUB), else classic.
	PubSubAuto PubSub = "auto"

	// PubSubOn is sharded: SPUBLISH and SSUBSCRIBE. Only a cluster has that.
	PubSubOn PubSub = "on"

	// PubSubOff is classic: PUBLISH and SUBSCRIBE.
	PubSubOff PubSub = "off"
)

// mode returns the mode of p for a client, which is unknown if the server is to be asked.
func (p PubSub) mode(c redisconn.Client) (redisconn.PubSubMode, error) {
	switch p {
	case "", PubSubAuto:
		if c.Strict() {
			return redisconn.PubSubUnknown, nil
		}
		return redisconn.PubSubClassic, nil
	case PubSubOff:
		return redisconn.PubSubClassic, nil
	case PubSubOn:
		if !c.Strict() {
			return 0, fmt.Errorf("%w: pubsub %q: only a Redis Cluster has sharded messages: want %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOff)
		}
		return redisconn.PubSubSharded, nil
	}
	return 0, fmt.Errorf("%w: pubsub %q: want %q, %q or %q", driver.ErrInvalid, p, PubSubAuto, PubSubOn, PubSubOff)
}

// Watch subscribes to the channel on which a release is published. All watches of a backend share
// one connection to a server, and all watches of a lock share one subscription. A message wakes as
// many of them as it lets in: one, if the lock is exclusive. A watch that was woken and is closed
// before its owner has retried passes the message on. A queued waiter has a channel of its own.
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
	w := &releaseWaiter{owner: r.Owner, queued: r.Queue, braces: braces, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	if err := b.releases.add(ctx, w, name, rec.channelFor(name, r), rec.wakes); err != nil {
		return driver.Watch{}, err
	}
	select {
	case err = <-w.armed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.releases.remove(w)
		return driver.Watch{}, watchError(r.Name, err)
	}
	return driver.Watch{Ready: w.ready, Close: func() { b.releases.remove(w) }}, nil
}

// watchError lets a user who may not subscribe poll.
func watchError(name string, err error) error {
	if re := (*redisconn.ReplyError)(nil); errors.As(err, &re) && re.HasCode("NOPERM") {
		return fmt.Errorf("%w: %w", driver.ErrSkip, re)
	}
	return fmt.Errorf("redislock: watch %s: %w", driver.Quote(name), err)
}

// releaseNotifier wakes a backend's waiters when releases are published.
type releaseNotifier struct {
	subscriptions *redisconn.Subscriptions
	waiters       atomic.Int64

	mu       sync.Mutex
	channels map[string]*releaseChannel
	byOwner  map[string]*releaseWaiter
}

func newReleaseNotifier(s *redisconn.Subscriptions) *releaseNotifier {
	return &releaseNotifier{subscriptions: s, channels: map[string]*releaseChannel{}, byOwner: map[string]*releaseWaiter{}}
}

// add lets w wait for messages on a channel of the lock key. lets says how many a message lets in.
func (n *releaseNotifier) add(ctx context.Context, w *releaseWaiter, key, channel string, lets func(message string) int) error {
	n.mu.Lock()
	c := n.channels[channel]
	if c == nil {
		c = &releaseChannel{n: n, name: channel, lets: lets}
		n.channels[channel] = c
	}
	w.channel = c
	c.waiters = append(c.waiters, w)
	n.byOwner[w.owner] = w
	n.waiters.Add(1)
	n.mu.Unlock()
	confirmed, err := n.subscriptions.Join(ctx, key, channel, c)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.forget(w)
		return err
	}
	if confirmed {
		w.arm(nil)
	}
	return nil
}

// remove ends w's wait. A message that has woken it goes to the next.
func (n *releaseNotifier) remove(w *releaseWaiter) {
	n.mu.Lock()
	n.forget(w)
	n.mu.Unlock()
	n.subscriptions.Leave(w.channel.name, !w.queued)
}

// forget removes w and passes on what has woken it. The mutex is held.
func (n *releaseNotifier) forget(w *releaseWaiter) {
	c := w.channel
	c.waiters = slices.DeleteFunc(c.waiters, func(x *releaseWaiter) bool { return x == w })
	if len(c.waiters) == 0 {
		delete(n.channels, c.name)
	}
	if n.byOwner[w.owner] == w {
		delete(n.byOwner, w.owner)
	}
	n.waiters.Add(-1)
	if w.woken {
		c.wake(1)
	}
}

// retried notes that owner has retried, so that the message that woke it is used up.
func (n *releaseNotifier) retried(owner string) {
	if n.waiters.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.byOwner[owner]; w != nil && len(w.ready) == 0 {
		w.woken = false
	}
}

// releaseWaiter is one watch. The notifier's mutex guards everything but the Go channels.
type releaseWaiter struct {
	owner   string
	channel *releaseChannel
	ready   chan struct{} // holds a signal that was not taken yet
	armed   chan error    // gets one answer
	isArmed bool
	queued  bool // its channel is of no use to another
	braces  bool // it waits for {a}, whose channel is a's too
	woken   bool // and has not retried since
}

func (w *releaseWaiter) arm(err error) {
	if !w.isArmed {
		w.isArmed = true
		w.armed <- err
	}
}

// wake reports whether w had no signal yet.
func (w *releaseWaiter) wake() bool {
	select {
	case w.ready <- struct{}{}:
		w.woken = true
		return true
	default:
		return false
	}
}

// releaseChannel is a channel and its waiters.
type releaseChannel struct {
	n       *releaseNotifier
	name    string
	lets    func(message string) int
	waiters []*releaseWaiter
}

// wake wakes up to n waiters that have no signal yet, the oldest first. It wakes that many of each
// kind: queued and not, and for each of the locks a and {a}, since a message does not say which of
// them it is about.
func (c *releaseChannel) wake(n int) {
	type kind struct{ queued, braces bool }
	woken := map[kind]int{}
	for _, w := range c.waiters {
		k := kind{w.queued, w.braces}
		if woken[k] < n && w.wake() {
			woken[k]++
		}
	}
}

// Subscribed arms the new waiters. The others may have missed messages.
func (c *releaseChannel) Subscribed() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for _, w := range c.waiters {
		if w.isArmed {
			w.wake()
		}
		w.arm(nil)
	}
}

// Received wakes as many waiters as the message lets in.
func (c *releaseChannel) Received(message string) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.wake(c.lets(message))
}

// Failed fails the waiters that are not armed yet.
func (c *releaseChannel) Failed(err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for _, w := range c.waiters {
		w.arm(err)
	}
}
