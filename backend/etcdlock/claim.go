package etcdlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/distlock/distlock/driver"
)

// ownerState is what this backend has put into etcd for an Owner: a hold, a place in line, or
// what may be one after a call without an answer. Only calls for its Owner write to it,
// of which there is one at a time; the mutex is for the others that read.
type ownerState struct {
	b          *Backend
	name       string
	owner      string
	key        string
	created    int64  // revision; 0 while not known
	modified   int64  // revision of the last write to the key; 0 while not known
	fence      uint64 // 0: not granted
	mode       driver.Mode
	limit      int
	fixed      bool
	lease      *lease // nil: the key may be with one or another
	oldLease   *lease // a fixed hold's last one, until the key has left it
	unknown    bool   // the last write for it has no answer
	lateWrite  bool   // a write or a deletion may still come to the key, also after it is gone
	ended      bool   // released, or lost
	onLost     func()
	watch      *keyWatch // watches the key of a hold
	unverified bool      // it may have begun too late

	// What the last attempt told of those before it.
	position     int            // how many they are
	keysAhead    []string       // a permit's: who they are
	front        lockKey        // the first of them
	blocker      string         // the one whose end it waits for
	isNext       bool           // nobody else is before it in line
	blockedWhile []clientv3.Cmp // while this is so, it is kept out
}

// owners are those of a backend, by Owner.
type owners struct {
	mu      sync.Mutex
	byOwner map[string]*ownerState
	byKey   map[string]*ownerState // by key
	watches map[string]*releaseWatch
}

func (s *owners) init() {
	s.byOwner, s.byKey, s.watches = map[string]*ownerState{}, map[string]*ownerState{}, map[string]*releaseWatch{}
}

func (s *owners) get(owner string) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byOwner[owner]
}

// openOwner is the claim of a request whose key is about to be written.
func (b *Backend) openOwner(r *driver.Request, l *lease) (*ownerState, error) {
	s := &b.owners
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byOwner[r.Owner]
	key, err := b.freeKey(c, r, l)
	if err != nil {
		return nil, err
	}
	if c == nil {
		c = &ownerState{b: b, name: r.Name, owner: r.Owner}
		s.byOwner[r.Owner] = c
	}
	s.unwatch(c)
	s.setKey(c, key)
	c.created, c.modified, c.fence, c.lease = 0, 0, 0, l
	c.mode, c.limit, c.fixed, c.onLost = r.Mode, r.Limit, l.fixed, r.OnLost
	return c, nil
}

// slots are how many keys a backend uses again and again for a lock. Until the history is
// compacted the servers keep a note of every key that ever was, and go through those of a
// lock for each attempt: a key of its own for each would make all slower and slower.
const slots = 8

// freeKey is a key for a request: that which its Owner has, or one that nobody here has
// now and no write may still come to. The mutex is held.
func (b *Backend) freeKey(c *ownerState, r *driver.Request, l *lease) (string, error) {
	folder := b.folder(r.Name)
	if prefix := folder + keySuffix(l.id, ""); c != nil && c.name == r.Name && strings.HasPrefix(c.key, prefix) {
		return c.key, nil
	}
	if b.tombstones.hasOwner(r.Owner) {
		return "", fmt.Errorf("%w: owner %s was released when its outcome was unknown; take a new one", driver.ErrInvalid, r.Owner)
	}
	for i := range slots {
		key := folder + keySuffix(l.id, strconv.Itoa(i))
		if b.owners.byKey[key] == nil && !b.tombstones.has(key) {
			return key, nil
		}
	}
	return folder + keySuffix(l.id, r.Owner), nil
}

// setKey makes a key that of a claim; empty: it has none any more. The mutex is held.
func (s *owners) setKey(c *ownerState, key string) {
	if s.byKey[c.key] == c {
		delete(s.byKey, c.key)
	}
	if key != "" {
		c.key, s.byKey[key] = key, c
	}
}

// forget forgets a claim that has no key, or will have none.
func (s *owners) forget(c *ownerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(c)
}

func (s *owners) forgetLocked(c *ownerState) {
	c.ended = true
	if c.unknown || c.lateWrite {
		c.b.tombstones.add(c.key, "")
	}
	s.setKey(c, "")
	if s.byOwner[c.owner] == c {
		delete(s.byOwner, c.owner)
	}
	s.unwatch(c)
	for _, l := range []*lease{c.lease, c.oldLease} {
		if l != nil && l.fixed {
			c.b.leases.revokeLater(l)
		}
	}
}

// unwatch ends the watch on a hold's key. The mutex is held.
func (s *owners) unwatch(c *ownerState) {
	if c.watch != nil {
		c.b.stream.unwatch(c.watch)
		c.watch = nil
	}
}

// leaseChanging notes that a write is on its way that attaches a key to a lease.
func (s *owners) leaseChanging(c *ownerState, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.lease == l {
		return
	}
	if c.lease != nil && c.lease.fixed {
		c.oldLease = c.lease
	}
	c.lease = nil
}

// leaseChanged notes that it was answered, with this revision.
func (s *owners) leaseChanged(c *ownerState, l *lease, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.lease, c.fixed, c.modified = l, l.fixed, revision
	if c.oldLease != nil && c.oldLease != l {
		c.b.leases.revokeLater(c.oldLease)
	}
	c.oldLease = nil
}

// setBlocker notes what stands in the way of a place in line, and lets its watch look there.
func (s *owners) setBlocker(c *ownerState, ahead lockQueue, by *lockKey) {
	s.mu.Lock()
	c.position, c.front, c.blocker = len(ahead), ahead[0], by.key
	c.blockedWhile = blockedWhile(ahead, by, c.mode, c.limit)
	c.isNext = by.key == ahead[0].key || c.mode == driver.Counted && len(ahead) == c.limit
	c.keysAhead = c.keysAhead[:0]
	if c.mode == driver.Counted {
		for i := range ahead {
			c.keysAhead = append(c.keysAhead, ahead[i].key)
		}
	}
	w := s.watches[c.owner]
	s.mu.Unlock()
	if w != nil {
		w.follow(c)
	}
}

// update writes to a claim.
func (s *owners) update(c *ownerState, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// markLost tells a holder that its key is gone. The claim is forgotten: to ask again is to
// start anew.
func (s *owners) markLost(c *ownerState) {
	s.mu.Lock()
	tell := c.onLost
	if c.ended || c.fence == 0 {
		tell = nil
	}
	c.onLost = nil
	if !c.ended {
		s.forgetLocked(c)
	}
	s.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// leaseEnded loses all claims of a lease that has ended.
func (b *Backend) leaseEnded(id clientv3.LeaseID) {
	b.owners.mu.Lock()
	var of []*ownerState
	for _, c := range b.owners.byOwner {
		if c.lease != nil && c.lease.id == id {
			of = append(of, c)
		}
	}
	b.owners.mu.Unlock()
	for _, c := range of {
		b.owners.markLost(c)
	}
}
