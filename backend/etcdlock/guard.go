package etcdlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// guardAfter is the age from which on the key of a hold is watched. Most holds end before:
// they cost no watch.
const guardAfter = 100 * time.Millisecond

// young are the holds whose keys are not watched yet.
type young struct {
	guard func([]*claim)

	mu     sync.Mutex
	closed bool
	now    []*claim // since the last tick
	last   []*claim // since the one before
	timer  *time.Timer
}

func (y *young) init(guard func([]*claim)) { y.guard = guard }

// add has the key of a hold be watched in a while.
func (y *young) add(c *claim) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		return
	}
	y.now = append(y.now, c)
	if y.timer == nil {
		y.timer = time.AfterFunc(guardAfter, y.tick)
	}
}

func (y *young) tick() {
	y.mu.Lock()
	old := y.last
	y.last, y.now, y.timer = y.now, nil, nil
	if len(y.last) > 0 && !y.closed {
		y.timer = time.AfterFunc(guardAfter, y.tick)
	}
	y.mu.Unlock()
	y.guard(old)
}

func (y *young) close() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.closed = true
	if y.timer != nil {
		y.timer.Stop()
	}
}

// guard watches the keys of those that are still held, from their grants on. Those whose
// watch was interrupted are looked at.
func (b *Backend) guard(old []*claim) {
	var doubts []*claim
	b.claims.mu.Lock()
	for _, c := range old {
		switch {
		case c.gone || c.fence == 0 || c.onLost == nil:
		case c.sub == nil:
			c.sub = b.hub.watch(&sub{listener: c, key: c.key, start: int64(c.fence) + 1})
		case c.doubt:
			c.doubt = false
			doubts = append(doubts, c)
		}
	}
	b.claims.mu.Unlock()
	for some := range slices.Chunk(doubts, maxOps) {
		b.verify(some)
	}
}

// verify looks whether holds have lost their keys while nobody watched. What has no answer
// is found out by the next renewal.
func (b *Backend) verify(some []*claim) {
	ctx, cancel := context.WithTimeout(b.hub.ctx, answerTime)
	defer cancel()
	gone, _, err := b.missing(ctx, some)
	if err != nil {
		return
	}
	for i, c := range some {
		if gone[i] {
			b.claims.lose(c)
		}
	}
}

// armed: a watch that begins with the grant misses nothing; for any other somebody has to
// look.
func (c *claim) armed(missed bool) {
	c.b.claims.mu.Lock()
	c.doubt = c.doubt || missed
	c.b.claims.mu.Unlock()
	if missed {
		c.b.young.add(c)
	}
}

// event: somebody deleted the key, or its lease has ended.
func (c *claim) event(*mvccpb.Event) { c.b.claims.lose(c) }
