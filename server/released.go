package server

import (
	"hash/maphash"
	"sync"
	"time"
)

// releasedOwners has the Owners that were released last. A client that gives up an attempt releases its Owner on another
// connection, and that may be served first: then the attempt would take the lock for nobody. The zero value is
// ready, and safe for concurrent use. It keeps hashes of them, which are small enough for the processor's caches: one attempt in
// 2⁵⁰ is taken for another one's, and its client makes a new Owner.
type releasedOwners struct {
	mu           sync.Mutex
	last, before map[uint64]struct{}
	began        time.Time // last
}

var ownerSeed = maphash.MakeSeed()

const (
	maxReleased  = 1 << 13     // in last, and in before
	releasedLife = time.Minute // a request that was held back for longer has no client
)

func (o *releasedOwners) add(owner string) {
	hash := maphash.String(ownerSeed, owner)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	o.last[hash] = struct{}{}
}

// check returns an error if an attempt is for an Owner that was released.
func (o *releasedOwners) check(owner string) error {
	hash := maphash.String(ownerSeed, owner)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	_, last := o.last[hash]
	if _, before := o.before[hash]; !last && !before {
		return nil
	}
	return errReleased
}

// forget forgets those before the last ones, if the last ones are many, or old. The caller has locked mu.
func (o *releasedOwners) forget() {
	now := time.Now()
	age := now.Sub(o.began)
	if o.last != nil && len(o.last) < maxReleased && age <= releasedLife {
		return
	}
	if age > 2*releasedLife { // nothing has been released or acquired since
		clear(o.last)
	}
	clear(o.before)
	o.last, o.before, o.began = o.before, o.last, now
	if o.last == nil {
		o.last = map[uint64]struct{}{}
	}
}
