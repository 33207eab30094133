package etcdlock

import (
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ownerState is what this connection knows of an Owner's key. Other connections may write and delete the key, too: they
// serve the same Owner.
//
//	state     created  written  fence  what may be stored         left by
//	asked     0        0        0      a key, at any moment       a call that looks: without a key it revokes the lease
//	waiting   >0       >0       0      a place in the queue       a grant, which writes the key; a look at another write
//	holding   >0       >0       >0     a hold                     a write without an answer: in doubt
//	in doubt  >0       0        any    anything                   a call that looks, and writes
//
// A key that is gone, or deleted, ends each of them: the state is forgotten. It may be forgotten at any time, since all that
// counts is stored. Three rules make that safe:
//
//   - A connection relies on leases of its own only, since another one may have sent a revocation that is late.
//   - A connection renews without a write, or moves a key to another lease, only if it has written the key last, and
//     that was answered (mine). Otherwise it first writes the key with the lease that it has. That harms nobody if it
//     is late, and afterwards no late write of another connection is executed.
//   - Each write to a key, and each deletion by an Owner that has it, is on the condition that the key is as it was
//     last written or read.
//
// Only calls for the Owner write to the state, one at a time; the mutex of owners is for other readers.
type ownerState struct {
	owners *owners
	name   string
	owner  string
	keyWrite
	mine   bool   // this connection has written last
	late   bool   // a call for it had no answer, and may be executed yet
	fence  uint64 // 0: not granted, as far as this connection knows
	mode   driver.Mode
	limit  int
	lease  *lease
	moving *lease // to which a write without an answer may move the key, or from which it has moved it
	ended  bool   // released, or lost
	onLost func()

	watch      *keyWatch // on the key of a hold
	unverified bool      // the watch may have missed the key's end
	place
}

// keyWrite is a key as it was last written, by anyone.
type keyWrite struct {
	key              string
	created, written int64 // revisions
}

// place is the queue before a waiter, as its last attempt has seen it.
type place struct {
	front        lockKey
	ahead        int            // keys before this one
	blockers     []string       // those of them that block it, or far back those that attempts look at
	enough       int            // another attempt is due when fewer of them are left
	blocker      string         // the last of them
	blockedAt    int64          // revision
	isNext       bool           // no other waiter is before it
	blockedWhile []clientv3.Cmp // conditions
	freeWhen     []clientv3.Cmp // conditions under which nothing blocks it
}

// owners has the state of all Owners of a backend.
type owners struct {
	leases  *leases
	stream  *watchStream
	delayed delayedWatches

	mu      sync.Mutex
	byOwner map[string]*ownerState
	sweepAt int                 // so many states are swept
	waiting map[string]follower // by Owner
}

// follower is the watch of a waiter. Owners need not know how it watches.
type follower interface {
	follow(*ownerState) // the waiter's place in the queue has changed
}

func (s *owners) init(leases *leases, stream *watchStream) {
	s.leases, s.stream, s.delayed.mu = leases, stream, &s.mu
	s.byOwner, s.waiting, s.sweepAt = map[string]*ownerState{}, map[string]follower{}, minSweep
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

// add makes the state of an Owner whose key was created with a lease at a revision, or may be created; 0.
func (s *owners) add(r *driver.Request, key string, l *lease, created int64) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byOwner) >= s.sweepAt {
		s.sweep()
	}
	o := &ownerState{
		owners: s, name: r.Name, owner: r.Owner, keyWrite: keyWrite{key, created, created}, mode: r.Mode, limit: r.Limit,
		mine: created > 0, late: created == 0, lease: l,
	}
	s.byOwner[r.Owner] = o
	return o
}

// checkConversion returns an error if an Owner's own key can't become the requested one. A read
// key never becomes a write key, not even in the queue: readers behind it may hold already.
func checkConversion(own *ownerState, r *driver.Request) error {
	switch {
	case own.mode == driver.Read && r.Mode == driver.Write:
		return fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)
	case !own.mode.SameKind(r.Mode) || r.Mode == driver.Counted && own.limit != r.Limit:
		return fmt.Errorf("%w: the owner has %s, or waits for it, as %v with limit %d, requested as %v with limit %d",
			driver.ErrInvalid, driver.Quote(r.Name), own.mode, own.limit, r.Mode, r.Limit)
	}
	return nil
}

// minSweep is the least number of states that are swept.
const minSweep = 1024

// sweep forgets what nobody has kept alive for a TTL after its end: the calls of such an Owner go through another
// connection, or have ended. The mutex is held.
func (s *owners) sweep() {
	now := time.Now()
	for _, o := range s.byOwner {
		if now.After(o.lease.expiry().Add(max(o.lease.ttl(), time.Minute))) {
			s.drop(o)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.byOwner))
}

// found records the key of an Owner as it was read. o is nil if nothing was known of it.
func (s *owners) found(o *ownerState, name string, k *lockKey) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o == nil {
		o = &ownerState{owners: s, name: name, owner: k.owner, lease: newLease(k.lease, keepAliveReply{sent: time.Now()})}
		s.byOwner[k.owner] = o
	}
	if o.written != k.modified {
		o.mine = false
	}
	if o.key != k.key {
		s.unwatch(o)
	}
	if o.created != k.created {
		o.place = place{} // that of a key which is gone
	}
	o.keyWrite, o.mode, o.limit, o.fence = keyWrite{k.key, k.created, k.modified}, k.mode, k.Limit, k.grantFence()
	switch {
	case o.lease.id == k.lease:
	case o.moving != nil && o.moving.id == k.lease:
		o.lease, o.moving = o.moving, o.lease
	default:
		s.retireOwn(o.lease)
		o.lease = newLease(k.lease, keepAliveReply{sent: time.Now()})
	}
	return o
}

// granted makes an Owner's key a hold, whose watch begins later. It returns false if another call has found that the key is gone,
// before there was an OnLost to call.
func (s *owners) granted(o *ownerState, r *driver.Request, fence uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.ended {
		return false
	}
	o.fence, o.mode, o.limit, o.onLost, o.place = fence, r.Mode, r.Limit, r.OnLost, place{}
	s.delayed.add(o)
	return true
}

// wrote records that this connection has written an Owner's key. No earlier write can be executed any more.
func (s *owners) wrote(o *ownerState, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.written, o.mine = revision, true
	s.retireOwn(o.moving)
	o.moving = nil
}

// doubt records that a write to an Owner's key has no answer (late), or that somebody else has written or deleted it.
func (s *owners) doubt(o *ownerState, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.written, o.mine, o.late = 0, false, o.late || late
}

// forget forgets an Owner that has no key, or none of this connection. A lease that only this connection may
// use again is revoked.
func (s *owners) forget(o *ownerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(o)
}

func (s *owners) forgetLocked(o *ownerState) {
	if o.ended {
		return
	}
	s.drop(o)
	s.retireOwn(o.lease)
	s.retireOwn(o.moving)
}

// free forgets an Owner whose key was deleted, and keeps its lease for the next one.
func (s *owners) free(o *ownerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.ended {
		return
	}
	if o.late || o.moving != nil {
		s.forgetLocked(o)
		return
	}
	s.drop(o)
	s.leases.put(o.lease)
}

// retireOwn revokes a lease that this connection has granted. Another one may have other keys.
func (s *owners) retireOwn(l *lease) {
	if l != nil && l.own {
		s.leases.retire(l)
	}
}

// drop ends the state of an Owner. The mutex is held.
func (s *owners) drop(o *ownerState) {
	o.ended = true
	if s.byOwner[o.owner] == o {
		delete(s.byOwner, o.owner)
	}
	s.unwatch(o)
}

// releasing returns the state of an Owner that is about to be released: its end is no loss.
func (s *owners) releasing(owner, name string) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.byOwner[owner]
	if o == nil || o.name != name {
		return nil
	}
	o.onLost = nil
	s.unwatch(o)
	return o
}

// unwatch ends the watch on a hold's key. The mutex is held.
func (s *owners) unwatch(o *ownerState) {
	if o.watch != nil {
		s.stream.unwatch(o.watch)
		o.watch = nil
	}
}

// setBlocker records the queue of a waiter as of a revision, and points its watch at its blocker.
func (s *owners) setBlocker(o *ownerState, ahead lockQueue, by *lockKey, revision int64) {
	s.mu.Lock()
	o.blockedAt = revision
	o.ahead, o.front, o.blocker = len(ahead), ahead[0], by.key
	o.blockedWhile, o.freeWhen = blockedWhile(ahead, by, o.mode, o.limit), freeWhen(ahead, o.mode)
	o.isNext = by.key == ahead[0].key || o.mode == driver.Counted && len(ahead) == o.limit
	o.blockers, o.enough = o.blockers[:0], 1
	if o.mode == driver.Counted {
		o.enough = o.limit
	}
	if o.ahead > shortQueue && len(o.blockedWhile) > 0 {
		// Attempts look at these only, so they would not know of others that end while no watch is live.
		o.enough = len(o.blockedWhile)
		for i := range o.blockedWhile {
			o.blockers = append(o.blockers, string(o.blockedWhile[i].KeyBytes()))
		}
		ahead = nil
	}
	for i := range ahead {
		if o.mode != driver.Read || ahead[i].mode != driver.Read {
			o.blockers = append(o.blockers, ahead[i].key)
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
	if o.watch != nil {
		s.forgetLocked(o)
	}
	s.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// started has the key verified, unless the watch began with the grant and has missed nothing.
func (o *ownerState) started(missed bool) {
	if missed {
		o.owners.update(o, func() {
			o.unverified = true
			o.owners.delayed.add(o)
		})
	}
}

// event reports the loss: the key was deleted, or its lease has ended.
func (o *ownerState) event(ev *mvccpb.Event) {
	o.owners.mu.Lock()
	gone := string(ev.Kv.Key) == o.key && ev.Kv.ModRevision > o.created
	o.owners.mu.Unlock()
	if gone {
		o.owners.markLost(o)
	}
}

// watchAfter is the age at which the watch on a hold's key begins. Most holds end sooner, and cost
// no watch.
const watchAfter = 100 * time.Millisecond

// delayedWatches has the holds whose keys are not watched yet.
type delayedWatches struct {
	due func([]*ownerState)

	mu       *sync.Mutex // of owners
	closed   bool
	current  []*ownerState // since the last tick
	previous []*ownerState // since the one before
	timer    *time.Timer
}

// add has the watch on a hold's key begin later. The mutex is held.
func (d *delayedWatches) add(o *ownerState) {
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
