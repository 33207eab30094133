package redislock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
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
// All watches are woken while a lost connection is not back, and once it is, since messages may have been missed. A hold
// that ends by its TTL publishes nothing: HeldError.Retry says when it ends.
func (b *Backend) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if err := b.check(r.Hold); err != nil {
		return driver.Watch{}, err
	}
	m, key := b.layout.Mode(r.Mode), b.layout.Prefix+r.Name
	_, braces := layouts.Braced(key)
	w := &releaseWaiter{owner: r.Owner, lets: m.Wakes, alone: r.Queue && m.OwnChannels, braces: braces, ready: make(chan struct{}, 1), armed: make(chan error, 1)}
	if err := b.await(ctx, w, r.Name, m.ChannelFor(key, r)); err != nil {
		return driver.Watch{}, err
	}
	if !w.alone {
		return driver.Watch{Ready: w.ready, Close: func() { b.releases.remove(w) }}, nil
	}
	java := &releaseWaiter{lets: m.Wakes, braces: braces, ready: w.ready, armed: make(chan error, 1)}
	if err := b.await(ctx, java, r.Name, m.Channel(key)); err != nil {
		b.releases.remove(w)
		return driver.Watch{}, err
	}
	return driver.Watch{Ready: w.ready, Close: func() {
		b.releases.remove(java)
		b.releases.remove(w)
	}}, nil
}

// await arms w on a channel.
func (b *Backend) await(ctx context.Context, w *releaseWaiter, name, channel string) error {
	if err := b.releases.add(ctx, w, b.layout.Prefix+name, channel); err != nil {
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
	if re, is := redisconn.AsReply(err); is && re.HasCode("NOPERM") {
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

// add lets w wait for messages on a channel of the lock key.
func (n *releaseNotifier) add(ctx context.Context, w *releaseWaiter, key, channel string) error {
	n.mu.Lock()
	c := n.channels[channel]
	if c == nil {
		c = &releaseChannel{n: n, name: channel}
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
	n.subscriptions.Leave(w.channel.name, !w.alone)
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
		c.wake(func(*releaseWaiter) int { return 1 })
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
	lets    func(message string) int // how many of its kind a message lets in
	channel *releaseChannel
	ready   chan struct{} // holds a signal that was not taken yet
	armed   chan error    // gets one answer
	isArmed bool
	alone   bool // its channel is of no use to another
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
		return true
	default:
		return false
	}
}

// releaseChannel is a channel and its waiters.
type releaseChannel struct {
	n       *releaseNotifier
	name    string
	waiters []*releaseWaiter
}

// wake wakes waiters that have no signal yet, the oldest first: each of which fewer than lets says were woken before it. It counts
// those of the locks a and {a} apart, since a message does not say which of them it is about.
func (c *releaseChannel) wake(lets func(*releaseWaiter) int) {
	woken := map[bool]int{}
	for _, w := range c.waiters {
		if woken[w.braces] < lets(w) && w.wake() {
			w.woken = true
			woken[w.braces]++
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

// Received wakes the waiter that the message names. It wakes no other one in its place: the waiter was
// the first in the queue, and leaves it by a release, which notifies the next. A message without a name
// wakes as many waiters as it lets in.
func (c *releaseChannel) Received(message string) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if len(message) != layouts.OwnerLen {
		c.wake(func(w *releaseWaiter) int { return w.lets(message) })
	} else if w := c.n.byOwner[message]; w != nil {
		w.wake()
	}
}

// Failed fails the waiters that are not armed yet. The others miss messages.
func (c *releaseChannel) Failed(err error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for _, w := range c.waiters {
		if w.isArmed {
			w.wake()
		}
		w.arm(err)
	}
}
