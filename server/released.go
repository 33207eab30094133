package server

import (
	"sync"
	"time"
)

// releasedOwners has the Owners that were released last. A client that gives up an attempt releases its Owner on another
// connection, and that may be served first: then the attempt would take the lock for nobody. The zero value is
// ready, and safe for concurrent use.
type releasedOwners struct {
	mu   sync.Mutex
	at   map[string]time.Time
	ring []string // the keys of at, the oldest of which is at next once the ring is full
	next int
}

const (
	maxReleased  = 1 << 14
	releasedLife = time.Minute // a request that was held back for longer has no client
)

func (o *releasedOwners) add(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at == nil {
		o.at = map[string]time.Time{}
	}
	_, known := o.at[owner]
	o.at[owner] = time.Now()
	switch {
	case known:
	case len(o.ring) < maxReleased:
		o.ring = append(o.ring, owner)
	default:
		delete(o.at, o.ring[o.next])
		o.ring[o.next] = owner
		o.next = (o.next + 1) % maxReleased
	}
}

// check returns an error if an attempt is for an Owner that was released.
func (o *releasedOwners) check(owner string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at, known := o.at[owner]; !known || time.Since(at) > releasedLife {
		return nil
	}
	return errReleased
}
