package etcdlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/distlock/distlock/driver"
)

// claim is what this backend has put into etcd for an Owner: a hold, a place in line, or
// what may be one after a call without an answer. Only calls for its Owner write to it,
// of which there is one at a time; the mutex is for the others that read.
type claim struct {
	b      *Backend
	name   string
	owner  string
	key    string
	create int64  // revision; 0 while not known
	mod    int64  // revision of the last write to the key; 0 while not known
	fence  uint64 // 0: not granted
	mode   driver.Mode
	limit  int
	fixed  bool
	lease  *lease // nil: the key may be with one or another
	spare  *lease // a fixed hold's last one, until the key has left it
	unsure bool   // the last write for it has no answer
	stray  bool   // a write or a deletion may still come to the key, also after it is gone
	gone   bool   // released, or lost
	onLost func()
	sub    *sub // watches the key of a hold
	doubt  bool // it may have begun too late

	// What the last attempt told of those before it.
	line  int            // how many they are
	ahead []string       // a permit's: who they are
	front entry          // the first of them
	block string         // the one whose end it waits for
	next  bool           // nobody else is before it in line
	same  []clientv3.Cmp // while this is so, it is kept out
}

// claims are those of a backend, by Owner.
type claims struct {
	mu      sync.Mutex
	m       map[string]*claim
	keys    map[string]*claim // by key
	watches map[string]*watch
}

func (s *claims) init() {
	s.m, s.keys, s.watches = map[string]*claim{}, map[string]*claim{}, map[string]*watch{}
}

func (s *claims) get(owner string) *claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[owner]
}

// open is the claim of a request whose key is about to be written.
func (b *Backend) open(r *driver.Request, l *lease) (*claim, error) {
	s := &b.claims
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.m[r.Owner]
	key, err := b.vacantKey(c, r, l)
	if err != nil {
		return nil, err
	}
	if c == nil {
		c = &claim{b: b, name: r.Name, owner: r.Owner}
		s.m[r.Owner] = c
	}
	s.unguard(c)
	s.rekey(c, key)
	c.create, c.mod, c.fence, c.lease = 0, 0, 0, l
	c.mode, c.limit, c.fixed, c.onLost = r.Mode, r.Limit, l.fixed, r.OnLost
	return c, nil
}

// slots are how many keys a backend uses again and again for a lock. Until the history is
// compacted the servers keep a note of every key that ever was, and go through those of a
// lock for each attempt: a key of its own for each would make all slower and slower.
const slots = 8

// vacantKey is a key for a request: that which its Owner has, or one that nobody here has
// now and no write may still come to. The mutex is held.
func (b *Backend) vacantKey(c *claim, r *driver.Request, l *lease) (string, error) {
	folder := b.folder(r.Name)
	if prefix := folder + tail(l.id, ""); c != nil && c.name == r.Name && strings.HasPrefix(c.key, prefix) {
		return c.key, nil
	}
	if b.late.bars(r.Owner) {
		return "", fmt.Errorf("%w: owner %s was released when its outcome was unknown; take a new one", driver.ErrInvalid, r.Owner)
	}
	for i := range slots {
		key := folder + tail(l.id, strconv.Itoa(i))
		if b.claims.keys[key] == nil && !b.late.has(key) {
			return key, nil
		}
	}
	return folder + tail(l.id, r.Owner), nil
}

// rekey makes a key that of a claim; empty: it has none any more. The mutex is held.
func (s *claims) rekey(c *claim, key string) {
	if s.keys[c.key] == c {
		delete(s.keys, c.key)
	}
	if key != "" {
		c.key, s.keys[key] = key, c
	}
}

// drop forgets a claim that has no key, or will have none.
func (s *claims) drop(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(c)
}

func (s *claims) dropLocked(c *claim) {
	c.gone = true
	if c.unsure || c.stray {
		c.b.late.add(c.key, "")
	}
	s.rekey(c, "")
	if s.m[c.owner] == c {
		delete(s.m, c.owner)
	}
	s.unguard(c)
	for _, l := range []*lease{c.lease, c.spare} {
		if l != nil && l.fixed {
			c.b.leases.giveUp(l)
		}
	}
}

// unguard ends the watch on a hold's key. The mutex is held.
func (s *claims) unguard(c *claim) {
	if c.sub != nil {
		c.b.hub.unwatch(c.sub)
		c.sub = nil
	}
}

// moving notes that a write is on its way that attaches a key to a lease.
func (s *claims) moving(c *claim, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.lease == l {
		return
	}
	if c.lease != nil && c.lease.fixed {
		c.spare = c.lease
	}
	c.lease = nil
}

// moved notes that it was answered, with this revision.
func (s *claims) moved(c *claim, l *lease, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.lease, c.fixed, c.mod = l, l.fixed, revision
	if c.spare != nil && c.spare != l {
		c.b.leases.giveUp(c.spare)
	}
	c.spare = nil
}

// refused notes what stands in the way of a place in line, and lets its watch look there.
func (s *claims) refused(c *claim, ahead row, by *entry) {
	s.mu.Lock()
	c.line, c.front, c.block = len(ahead), ahead[0], by.key
	c.same = keptOut(ahead, by, c.mode, c.limit)
	c.next = by.key == ahead[0].key || c.mode == driver.Counted && len(ahead) == c.limit
	c.ahead = c.ahead[:0]
	if c.mode == driver.Counted {
		for i := range ahead {
			c.ahead = append(c.ahead, ahead[i].key)
		}
	}
	w := s.watches[c.owner]
	s.mu.Unlock()
	if w != nil {
		w.follow(c)
	}
}

// change writes to a claim.
func (s *claims) change(c *claim, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// lose tells a holder that its key is gone. The claim is forgotten: to ask again is to
// start anew.
func (s *claims) lose(c *claim) {
	s.mu.Lock()
	tell := c.onLost
	if c.gone || c.fence == 0 {
		tell = nil
	}
	c.onLost = nil
	if !c.gone {
		s.dropLocked(c)
	}
	s.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// forgetLease loses all claims of a lease that has ended.
func (b *Backend) forgetLease(id clientv3.LeaseID) {
	b.claims.mu.Lock()
	var of []*claim
	for _, c := range b.claims.m {
		if c.lease != nil && c.lease.id == id {
			of = append(of, c)
		}
	}
	b.claims.mu.Unlock()
	for _, c := range of {
		b.claims.lose(c)
	}
}
