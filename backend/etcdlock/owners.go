package etcdlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ownerState describes an Owner's key. The key is a hold or a place in the queue, or it may be
// one, after a call without an answer. Only calls for the Owner write to it, one at a
// time; the mutex of owners is for other readers.
type ownerState struct {
	owners     *owners
	name       string
	owner      string
	key        string
	created    int64  // revision; 0: unknown
	modified   int64  // revision of the last write; 0: unknown
	fence      uint64 // 0: not granted
	mode       driver.Mode
	limit      int
	fixed      bool
	lease      *lease // nil: unknown
	oldLease   *lease // of a fixed hold, until the key has left it
	unknown    bool   // the outcome of the write that creates the key
	lateWrite  bool   // a write or deletion of the key may still be executed
	ended      bool   // released, or lost
	onLost     func()
	watch      *keyWatch // on the key of a hold
	unverified bool      // the watch may have missed the key's end
	expiry               // of detached holds and places

	// The queue as the last attempt has seen it.
	front        lockKey
	ahead        int            // keys before this one
	keysAhead    []string       // of a semaphore
	blocker      string         // the key whose end it waits for
	blockedAt    int64          // revision
	isNext       bool           // no other waiter is before it
	blockedWhile []clientv3.Cmp // conditions
}

// owners has the state of all Owners of a backend.
type owners struct {
	leases     *leases
	stream     *watchStream
	tombstones tombstones
	delayed    delayedWatches
	expiries   expiries

	mu      sync.Mutex
	byOwner map[string]*ownerState
	byKey   map[string]*ownerState
	waiting map[string]follower // by Owner
}

// follower is the watch of a waiter. Owners need not know how it watches.
type follower interface {
	follow(*ownerState) // the waiter's place in the queue has changed
}

func (s *owners) init(leases *leases, stream *watchStream) {
	s.leases, s.stream = leases, stream
	s.byOwner, s.byKey, s.waiting = map[string]*ownerState{}, map[string]*ownerState{}, map[string]follower{}
}

func (s *owners) close() {
	s.delayed.close()
	s.closeExpiries()
	s.tombstones.close()
}

func (s *owners) get(owner string) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byOwner[owner]
}

// update changes the state of an Owner.
func (s *owners) update(o *ownerState, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// open returns the state for a request whose key is about to be created in a folder.
func (s *owners) open(folder string, r *driver.Request, l *lease) (*ownerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.byOwner[r.Owner]
	key, err := s.freeKey(o, folder, r, l)
	if err != nil {
		return nil, err
	}
	if o == nil {
		o = s.newState(r.Name, r.Owner)
	}
	s.prolong(o, time.Now(), r.TTL)
	s.unwatch(o)
	s.rename(o, key)
	o.created, o.modified, o.fence, o.lease, o.life = 0, 0, 0, l, l.life
	o.mode, o.limit, o.fixed, o.onLost = r.Mode, r.Limit, l.fixed, r.OnLost
	return o, nil
}

// newState makes the state of an Owner. The mutex is held.
func (s *owners) newState(name, owner string) *ownerState {
	o := &ownerState{owners: s, name: name, owner: owner, expiry: expiry{index: -1}}
	s.byOwner[owner] = o
	return o
}

// slots is the number of keys that a lease reuses for a lock. Until the history is compacted the
// servers keep an entry of each key that ever was, and every attempt scans the entries of its lock.
const slots = 8

// freeKey returns the key for a request: the Owner's own, or one that no other Owner has and that
// no late write can hit. The mutex is held.
func (s *owners) freeKey(o *ownerState, folder string, r *driver.Request, l *lease) (string, error) {
	if o != nil && o.name == r.Name && strings.HasPrefix(o.key, folder+keySuffix(l.id, "")) {
		return o.key, nil
	}
	if s.tombstones.hasOwner(r.Owner) {
		return "", fmt.Errorf("%w: owner %s was released when its outcome was unknown; take a new one", driver.ErrInvalid, r.Owner)
	}
	for i := range slots {
		key := folder + keySuffix(l.id, strconv.Itoa(i))
		if s.byKey[key] == nil && !s.tombstones.has(key) {
			return key, nil
		}
	}
	return s.ownKey(folder, r.Owner, l), nil
}

// ownKey returns a key with the name of its Owner. The mutex is held.
func (s *owners) ownKey(folder, owner string, l *lease) string {
	key := folder + keySuffix(l.id, owner)
	for i := 1; s.byKey[key] != nil || s.tombstones.has(key); i++ {
		key = folder + keySuffix(l.id, owner+"."+strconv.Itoa(i))
	}
	return key
}

// adopted records that an Owner goes on with the key of another connection.
func (s *owners) adopted(o *ownerState, k *lockKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rename(o, k.key)
	o.created, o.unknown = k.created, false
}

// rename makes an Owner go on with a key. Late calls may still write or delete the one it had. The mutex is held.
func (s *owners) rename(o *ownerState, key string) {
	if key != o.key && (o.unknown || o.lateWrite) {
		s.tombstones.add(o.key, "")
	}
	s.setKey(o, key)
}

// setKey sets the key of an Owner; empty: it has none. The mutex is held.
func (s *owners) setKey(o *ownerState, key string) {
	if s.byKey[o.key] == o {
		delete(s.byKey, o.key)
	}
	if key != "" {
		o.key, s.byKey[key] = key, o
	}
}

// forget forgets an Owner that has no key, or will have none.
func (s *owners) forget(o *ownerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(o)
}

func (s *owners) forgetLocked(o *ownerState) {
	o.ended = true
	if o.unknown || o.lateWrite {
		s.tombstones.add(o.key, "")
	}
	s.setKey(o, "")
	if s.byOwner[o.owner] == o {
		delete(s.byOwner, o.owner)
	}
	s.unwatch(o)
	s.unschedule(o)
	for _, l := range []*lease{o.lease, o.oldLease} {
		if l != nil && l.fixed {
			s.leases.revokeLater(l)
		}
	}
}

// unwatch ends the watch on a hold's key. The mutex is held.
func (s *owners) unwatch(o *ownerState) {
	if o.watch != nil {
		s.stream.unwatch(o.watch)
		o.watch = nil
	}
}

// leaseChanging records that a write which attaches the key to a lease is about to be sent.
func (s *owners) leaseChanging(o *ownerState, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.lease == l {
		return
	}
	if o.lease != nil && o.lease.fixed {
		o.oldLease = o.lease
	}
	o.lease = nil
}

// leaseChanged records that this write was executed, with this revision.
func (s *owners) leaseChanged(o *ownerState, l *lease, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.lease, o.fixed, o.modified, o.life = l, l.fixed, revision, l.life
	o.expiring, o.lateDelete = false, false
	if o.oldLease != nil && o.oldLease != l {
		s.leases.revokeLater(o.oldLease)
	}
	o.oldLease = nil
}

// setBlocker records the queue of a waiter as of a revision, and points its watch at its blocker.
func (s *owners) setBlocker(o *ownerState, ahead lockQueue, by *lockKey, revision int64) {
	s.mu.Lock()
	o.blockedAt = revision
	o.ahead, o.front, o.blocker = len(ahead), ahead[0], by.key
	o.blockedWhile = blockedWhile(ahead, by, o.mode, o.limit)
	o.isNext = by.key == ahead[0].key || o.mode == driver.Counted && len(ahead) == o.limit
	o.keysAhead = o.keysAhead[:0]
	if o.mode == driver.Counted {
		for i := range ahead {
			o.keysAhead = append(o.keysAhead, ahead[i].key)
		}
	}
	w := s.waiting[o.owner]
	s.mu.Unlock()
	if w != nil {
		w.follow(o)
	}
}

// markLost notifies a holder that its key is gone, and forgets the Owner.
func (s *owners) markLost(o *ownerState) {
	s.mu.Lock()
	notify := o.onLost
	if o.ended || o.fence == 0 {
		notify = nil
	}
	o.onLost = nil
	if !o.ended {
		s.forgetLocked(o)
	}
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// leaseEnded loses all holds of a lease that has ended. Detached ones may have another one by now: their next
// renewals find out.
func (s *owners) leaseEnded(id clientv3.LeaseID) {
	if s.expiries.detached {
		return
	}
	s.mu.Lock()
	var lost []*ownerState
	for _, o := range s.byOwner {
		if o.lease != nil && o.lease.id == id {
			lost = append(lost, o)
		}
	}
	s.mu.Unlock()
	for _, o := range lost {
		s.markLost(o)
	}
}

// started has the key verified, unless the watch began with the grant and has missed nothing.
func (o *ownerState) started(missed bool) {
	if missed {
		o.owners.update(o, func() { o.unverified = true })
		o.owners.delayed.add(o)
	}
}

// event reports the loss: the key was deleted, or its lease has ended.
func (o *ownerState) event(*mvccpb.Event) { o.owners.markLost(o) }

// watchAfter is the age at which the watch on a hold's key begins. Most holds end sooner, and cost
// no watch.
const watchAfter = 100 * time.Millisecond

// delayedWatches has the holds whose keys are not watched yet.
type delayedWatches struct {
	due func([]*ownerState)

	mu       sync.Mutex
	closed   bool
	current  []*ownerState // since the last tick
	previous []*ownerState // since the one before
	timer    *time.Timer
}

func (d *delayedWatches) add(o *ownerState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.current = append(d.current, o)
	if d.timer == nil {
		d.timer = time.AfterFunc(watchAfter, d.tick)
	}
}

func (d *delayedWatches) tick() {
	d.mu.Lock()
	due := d.previous
	d.previous, d.current, d.timer = d.current, nil, nil
	if len(d.previous) > 0 && !d.closed {
		d.timer = time.AfterFunc(watchAfter, d.tick)
	}
	d.mu.Unlock()
	d.due(due)
}

func (d *delayedWatches) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

// deleteAges has the ages of a release at which its key is deleted again. A write without an answer may be
// executed as long as a server works on it, or the network holds it back.
var deleteAges = []time.Duration{time.Second, 4 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute}

// tombstoneLife is the time for which such a key isn't reused: late writes, and these deletions, must not
// hit the key of another Owner.
const tombstoneLife = 10 * time.Minute

// tombstones deletes the keys of released Owners that may still be written.
type tombstones struct {
	delete func(ctx context.Context, keys []string) (done []string)
	ctx    context.Context
	cancel context.CancelFunc
	wg     wait.Group

	mu      sync.Mutex
	byKey   map[string]*tombstone
	byOwner map[string]bool
	running bool
}

type tombstone struct {
	owner     string // which may not return; empty: none
	since     time.Time
	deletions int
	next      time.Time // a deletion that failed is not repeated before
}

func (s *tombstones) init(delete func(ctx context.Context, keys []string) (done []string)) {
	s.delete, s.byKey, s.byOwner = delete, map[string]*tombstone{}, map[string]bool{}
	s.ctx, s.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

func (s *tombstones) add(key, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey[key] = &tombstone{owner: owner, since: time.Now()}
	if owner != "" {
		s.byOwner[owner] = true
	}
	if !s.running && s.ctx.Err() == nil {
		s.running = true
		s.wg.Go(s.run)
	}
}

// has reports whether a key may still be written or deleted.
func (s *tombstones) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key] != nil
}

// any reports whether any key may still be written.
func (s *tombstones) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey) > 0
}

// hasOwner reports whether an Owner was released with such a key.
func (s *tombstones) hasOwner(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byOwner[owner]
}

// run deletes keys as long as there are any. A deletion without an answer is repeated.
func (s *tombstones) run() {
	for wait.Sleep(s.ctx, deleteAges[0]) == nil {
		due, done := s.due()
		if done {
			return
		}
		if len(due) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		s.deleted(s.delete(ctx, due))
		cancel()
	}
}

// due returns the keys to delete now, and whether there are none left at all.
func (s *tombstones) due() (keys []string, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, t := range s.byKey {
		age := time.Since(t.since)
		switch all := t.deletions == len(deleteAges); {
		case all && age > tombstoneLife:
			delete(s.byKey, key)
			delete(s.byOwner, t.owner)
		case !all && age >= deleteAges[t.deletions] && !time.Now().Before(t.next) && len(keys) < maxOps:
			t.next = time.Now().Add(min(age/4, time.Minute))
			keys = append(keys, key)
		}
	}
	s.running = len(s.byKey) > 0
	return keys, !s.running
}

func (s *tombstones) deleted(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if t := s.byKey[key]; t != nil {
			t.deletions++
			t.next = time.Time{}
		}
	}
}

func (s *tombstones) close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.wg.Wait()
}
