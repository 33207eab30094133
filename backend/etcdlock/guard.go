package etcdlock

import (
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

// guard watches the keys of those that are still held, from their grants on.
func (b *Backend) guard(old []*claim) {
	b.claims.mu.Lock()
	defer b.claims.mu.Unlock()
	old = slices.DeleteFunc(old, func(c *claim) bool { return c.gone || c.fence == 0 || c.onLost == nil || c.sub != nil })
	for _, c := range old {
		if c.sub == nil {
			c.sub = b.hub.watch(&sub{listener: c, key: c.key, start: int64(c.fence) + 1})
		}
	}
}

// armed has nothing to look for: the first watch begins with the grant, and after a break
// of the stream the next renewal looks.
func (c *claim) armed() {}

// event: somebody deleted the key, or its lease has ended.
func (c *claim) event(*mvccpb.Event) { c.b.claims.lose(c) }
