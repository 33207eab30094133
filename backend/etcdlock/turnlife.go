package etcdlock

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// turns has the places that were seen to be first while their locks were free. If the waiter doesn't come
// within driver.TurnLife, the next one deletes its place.
type turns struct {
	mu   sync.Mutex
	seen map[string]turn // by key
}

type turn struct {
	modified int64
	since    time.Time
}

// maxTurns bounds the turns that are remembered.
const maxTurns = 4096

// over returns the places whose turn has lasted for too long, with all others of their clients, the keys that are left, and how long
// the turns of these last. Readers, and permits, that nothing blocks have theirs together.
func (t *turns) over(q lockQueue) (places, rest lockQueue, left time.Duration) {
	gone := map[string]bool{} // clients
	for i := range q {
		k := &q[i]
		if !k.Later {
			continue
		}
		if blocker(q[:i], k.mode, k.Limit) != nil {
			break // and so is all that is behind
		}
		if d := driver.TurnLife - t.age(k); d > 0 {
			left = max(left, d)
		} else {
			gone[clientOf(k.owner)] = true
		}
	}
	for _, k := range q {
		if k.Later && gone[clientOf(k.owner)] {
			places = append(places, k)
		} else {
			rest = append(rest, k)
		}
	}
	return places, rest, left
}

// age returns how long it has been the turn of a place.
func (t *turns) age(k *lockKey) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if seen, ok := t.seen[k.key]; ok && seen.modified == k.modified {
		return now.Sub(seen.since)
	}
	if t.seen == nil || len(t.seen) >= maxTurns {
		t.seen = map[string]turn{}
	}
	t.seen[k.key] = turn{k.modified, now}
	return 0
}

// clientOf returns what all Owners of a client have in common.
func clientOf(owner string) string { return owner[:min(len(owner), driver.OwnersStart)] }
