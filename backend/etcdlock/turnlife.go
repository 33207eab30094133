package etcdlock

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// turns has the places that were seen to be first while their locks were free. If the waiter doesn't come
// within driver.TurnLife, the next one deletes its place.
type turns struct {
	mu    sync.Mutex
	since map[string]turn // by folder
}

type turn struct {
	key      string
	modified int64
	since    time.Time
}

// maxTurns bounds the turns that are remembered.
const maxTurns = 4096

// over notes whose turn it is, and reports whether that has been so for too long.
func (t *turns) over(folder string, k *lockKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, seen := time.Now(), t.since[folder]
	if seen.key == k.key && seen.modified == k.modified {
		return now.Sub(seen.since) >= driver.TurnLife
	}
	if t.since == nil || len(t.since) >= maxTurns {
		t.since = map[string]turn{}
	}
	t.since[folder] = turn{k.key, k.modified, now}
	return false
}
