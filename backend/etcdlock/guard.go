package etcdlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// watchAfter is the age from which on the key of a hold is watched. Most holds end before:
// they cost no watch.
const watchAfter = 100 * time.Millisecond

// delayedWatches are the holds whose keys are not watched yet.
type delayedWatches struct {
	guard func([]*ownerState)

	mu       sync.Mutex
	closed   bool
	current  []*ownerState // since the last tick
	previous []*ownerState // since the one before
	timer    *time.Timer
}

func (y *delayedWatches) init(guard func([]*ownerState)) { y.guard = guard }

// add has the key of a hold be watched in a while.
func (y *delayedWatches) add(c *ownerState) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		return
	}
	y.current = append(y.current, c)
	if y.timer == nil {
		y.timer = time.AfterFunc(watchAfter, y.tick)
	}
}

func (y *delayedWatches) tick() {
	y.mu.Lock()
	old := y.previous
	y.previous, y.current, y.timer = y.current, nil, nil
	if len(y.previous) > 0 && !y.closed {
		y.timer = time.AfterFunc(watchAfter, y.tick)
	}
	y.mu.Unlock()
	y.guard(old)
}

func (y *delayedWatches) close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.closed = true
	if y.timer != nil {
		y.timer.Stop()
	}
}

// watchHolds watches the keys of those that are still held, from their grants on. Those whose
// watch was interrupted are looked at.
func (b *Backend) watchHolds(old []*ownerState) {
	var doubts []*ownerState
	b.owners.mu.Lock()
	for _, c := range old {
		switch {
		case c.ended || c.fence == 0 || c.onLost == nil:
		case c.watch == nil:
			c.watch = b.stream.watch(&keyWatch{keyHandler: c, key: c.key, start: int64(c.fence) + 1})
		case c.unverified:
			c.unverified = false
			doubts = append(doubts, c)
		}
	}
	b.owners.mu.Unlock()
	for some := range slices.Chunk(doubts, maxOps) {
		b.verify(some)
	}
}

// verify looks whether holds have lost their keys while nobody watched. What has no answer
// is found out by the next renewal.
func (b *Backend) verify(some []*ownerState) {
	ctx, cancel := context.WithTimeout(b.stream.ctx, replyTimeout)
	defer cancel()
	gone, _, err := b.missingKeys(ctx, some)
	if err != nil {
		return
	}
	for i, c := range some {
		if gone[i] {
			b.owners.markLost(c)
		}
	}
}

// started: a watch that begins with the grant misses nothing; for any other somebody has to
// look.
func (c *ownerState) started(missed bool) {
	c.b.owners.mu.Lock()
	c.unverified = c.unverified || missed
	c.b.owners.mu.Unlock()
	if missed {
		c.b.delayed.add(c)
	}
}

// event: somebody deleted the key, or its lease has ended.
func (c *ownerState) event(*mvccpb.Event) { c.b.owners.markLost(c) }
