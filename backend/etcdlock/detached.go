package etcdlock

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Detached holds (Options.Detached) share leases as others do, but they don't live as long as these. The
// connection to whose lease a key is attached ends the hold after its TTL. Another connection that renews the
// hold, or acquires for its Owner, moves the key to its own lease. If the connection dies, the lease ends
// what was not moved.
//
// Three rules make that safe:
//
//   - A lease lives for half as long again as its holds. What is left of it is at least the TTL of
//     a hold when an answer relies on it, so a hold outlives a connection that dies with the answer.
//   - Every deletion, and every write to an existing key, is on the condition that the key is as it was
//     read. Of a deletion and a renewal that meet, one fails; a late one fails too.
//   - A renewal that writes nothing is only for a key that this connection has written last, and counts
//     from before the call. From the moment in which a deletion is decided on, renewals write.

// detachedLease returns the TTL in seconds of the lease for holds of up to life seconds.
func detachedLease(life int64) int64 { return life + (life+1)/2 }

// life returns the longest life that a detached hold or place was promised by its last write.
func (k *lockKey) life() time.Duration { return time.Duration(k.TTL) * time.Second }

// unmoved holds if the key is the one that was created, and, if other connections may move it, unchanged.
func (b *Backend) unmoved(o *ownerState) clientv3.Cmp {
	if b.detached {
		return modifiedAt(o.key, o.modified)
	}
	return createdAt(o.key, o.created)
}

// expiry is when a detached hold or place ends. The mutex of owners guards it.
type expiry struct {
	deadline   time.Time // it ends then, if no call prolongs it
	life       int64     // in seconds: no earlier promise was for longer
	expiring   bool      // the key is being deleted, or a deletion may still be executed
	lateDelete bool      // a deletion without an answer may still be executed
	taken      bool      // expire works on it
	due        time.Time // its place in the heap
	index      int       // in the heap; -1: not there
}

// expiries has the ends of all detached holds and places.
type expiries struct {
	detached bool
	expire   func(context.Context, []*ownerState)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       wait.Group

	// The mutex of owners guards these.
	heap    expiryHeap
	timer   *time.Timer // for the first of the heap
	running bool
	closed  bool
}

func (e *expiries) init(detached bool, expire func(context.Context, []*ownerState)) {
	e.detached, e.expire = detached, expire
	e.ctx, e.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

// expiryHeap is a heap by due.
type expiryHeap []*ownerState

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *expiryHeap) Push(x any) {
	o := x.(*ownerState)
	o.index = len(*h)
	*h = append(*h, o)
}
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	o := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	o.index = -1
	return o
}

// prolong makes a detached hold or place live for at least ttl from an instant on. The mutex is held.
func (s *owners) prolong(o *ownerState, from time.Time, ttl time.Duration) {
	if !s.expiries.detached {
		return
	}
	if end := from.Add(ttl); end.After(o.deadline) {
		o.deadline = end
	}
	if o.index < 0 {
		s.schedule(o, o.deadline)
	}
}

// schedule has an Owner's key looked at when due. The mutex is held.
func (s *owners) schedule(o *ownerState, due time.Time) {
	e := &s.expiries
	if o.ended || o.taken || e.closed {
		return
	}
	if o.due = due; o.index < 0 {
		heap.Push(&e.heap, o)
	} else {
		heap.Fix(&e.heap, o.index)
	}
	if e.heap[0] == o {
		s.setTimer()
	}
}

func (s *owners) unschedule(o *ownerState) {
	if s.expiries.detached && o.index >= 0 {
		heap.Remove(&s.expiries.heap, o.index)
	}
}

// setTimer sets the timer to the first of the heap. The mutex is held.
func (s *owners) setTimer() {
	e := &s.expiries
	if e.running || e.closed || len(e.heap) == 0 {
		return
	}
	d := time.Until(e.heap[0].due)
	if e.timer == nil {
		e.timer = time.AfterFunc(d, s.startExpiring)
		return
	}
	e.timer.Reset(d)
}

func (s *owners) startExpiring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := &s.expiries; !e.running && !e.closed {
		e.running = true
		e.wg.Go(s.runExpiries)
	}
}

// runExpiries ends what is due, one batch after the other: what ends earlier is deleted earlier.
func (s *owners) runExpiries() {
	for {
		due := s.takeDue()
		if len(due) == 0 {
			return
		}
		s.expiries.expire(s.expiries.ctx, due)
	}
}

// expiryBatch is the number of keys that are deleted by one request.
const expiryBatch = 32

// takeDue takes the Owners that have come to their end.
func (s *owners) takeDue() (due []*ownerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, now := &s.expiries, time.Now()
	for len(e.heap) > 0 && !e.heap[0].due.After(now) && len(due) < expiryBatch && !e.closed {
		o := e.heap[0]
		if o.deadline.After(now) { // it was prolonged
			o.due = o.deadline
			heap.Fix(&e.heap, 0)
			continue
		}
		heap.Pop(&e.heap)
		o.expiring, o.taken = true, true
		due = append(due, o)
	}
	if len(due) == 0 {
		e.running = false
		s.setTimer()
	}
	return due
}

func (s *owners) closeExpiries() {
	s.mu.Lock()
	e := &s.expiries
	e.closed = true
	e.cancel()
	if e.timer != nil {
		e.timer.Stop()
	}
	s.mu.Unlock()
	e.wg.Wait()
}

// mayUse reports whether keys of detached holds or places may be attached to a lease.
func (s *owners) mayUse(id clientv3.LeaseID) bool {
	if !s.expiries.detached {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.byOwner {
		if o.lease == nil || o.lease.id == id || o.unknown || o.lateWrite {
			return true
		}
	}
	return s.tombstones.any()
}

// attempted prolongs what an Owner has for an attempt, and returns the life that its key must be good for.
func (s *owners) attempted(o *ownerState, start time.Time, ttl time.Duration) time.Duration {
	if o == nil {
		return ttl
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prolong(o, start, ttl)
	return max(ttl, time.Duration(o.life)*time.Second)
}

// avoid gives a new key another name if its slot is in use: the key of a detached hold keeps its name where it
// goes.
func (s *owners) avoid(o *ownerState, folder string, l *lease, q lockQueue) bool {
	used := slices.ContainsFunc(q, func(k lockKey) bool { return k.key == o.key && k.owner != o.owner })
	if used {
		s.update(o, func() { s.setKey(o, folder+keySuffix(l.id, o.owner)) })
	}
	return used
}

// mayExpire reports whether an Owner's key is being deleted. Then only a write keeps it.
func (s *owners) mayExpire(o *ownerState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.expiring
}

// renewable returns the lease of a detached hold that can be renewed without a write, and prolongs the hold; nil
// if it has to be taken over.
func (s *owners) renewable(o *ownerState, h *driver.Hold, start time.Time) *lease {
	if o == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case o.name != h.Name, o.created == 0, o.fence == 0, o.modified == 0, o.lease == nil, o.ended, o.expiring:
		return nil
	case h.Shorten, o.life < seconds(h.TTL):
		return nil
	}
	if end := start.Add(h.TTL); o.life > seconds(h.TTL) && o.deadline.Before(end) {
		return nil // an extension is over: takeOver leaves its lease
	}
	s.prolong(o, start, h.TTL)
	return o.lease
}

// promised returns how long a hold must live on by what was promised before.
func (s *owners) promised(owner string, k *lockKey) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.byOwner[owner]
	if o != nil && o.key == k.key && o.modified == k.modified && o.lease != nil && o.lease.id == k.lease {
		return time.Until(o.deadline)
	}
	return k.life() // by another connection
}

// maxTakeOvers bounds how often a renewal reads a key that others write meanwhile.
const maxTakeOvers = 4

var errBusyKey = errors.New("others wrote the key again and again")

// takeOver renews a detached hold by moving its key to this connection's lease. It relies on nothing but what is
// stored.
func (r *leaseRenewal) takeOver(h *driver.Hold) error {
	for range maxTakeOvers {
		done, err := r.takeOverOnce(h)
		if done || err != nil {
			return err
		}
	}
	return r.b.fail("renew", h.Name, errBusyKey)
}

func (r *leaseRenewal) takeOverOnce(h *driver.Hold) (done bool, err error) {
	q, _, err := r.b.readQueue(r.ctx, h.Name)
	if err != nil {
		return false, r.b.fail("renew", h.Name, err)
	}
	i := q.find(h.Owner)
	if i < 0 || i >= q.holderCount() || q[i].foreign {
		if o := r.b.owners.get(h.Owner); i < 0 && o != nil && o.name == h.Name {
			r.b.owners.forget(o)
		}
		return false, errLostHold(h.Name)
	}
	k := &q[i]
	switch {
	case k.TTL == 0: // of a connection whose holds live as long as its leases
		return true, r.renewOther(h)
	case k.Later:
		return false, errLostHold(h.Name) // a place whose turn it is
	}
	life := h.TTL
	if !h.Shorten {
		life = max(life, r.b.owners.promised(h.Owner, k))
	}
	l, err := r.b.leases.forTTL(r.ctx, life)
	if err != nil {
		return false, r.b.fail("renew", h.Name, err)
	}
	o := r.b.owners.takenOver(h, k, r.start, life)
	if o == nil {
		return false, r.b.fail("renew", h.Name, errBusyKey) // this Owner has another name, too
	}
	k.Fence = cmp.Or(k.Fence, uint64(k.modified))
	resp, err := r.b.client.Txn(r.ctx).If(modifiedAt(k.key, k.modified)).Then(k.put(l)).Commit()
	switch err := r.b.leaseError(l, err); {
	case errors.Is(err, errLeaseEnded):
		return false, nil
	case err != nil:
		return false, r.b.fail("renew", h.Name, err)
	}
	if !resp.Succeeded || !r.b.owners.written(o, k, l, resp.Header.Revision) {
		return false, nil
	}
	if h.Shorten {
		r.b.owners.shorten(o, r.start.Add(h.TTL))
	}
	if err = r.b.leases.ensureTerm(r.ctx, l, resp.Header.RaftTerm); err == nil {
		err = r.b.closedMeanwhile()
	}
	return true, r.holdError(h, err, rpctypes.ErrLeaseNotFound)
}

// closedMeanwhile returns an error if Close may revoke the lease of a key that was just written.
func (b *Backend) closedMeanwhile() error {
	if b.closed.Load() {
		return errors.New("the lease may have been revoked")
	}
	return nil
}

// put writes a key again, attached to a lease.
func (k *lockKey) put(l *lease) clientv3.Op {
	k.keyValue.TTL = l.life
	text, err := json.Marshal(k.keyValue)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return clientv3.OpPut(k.key, string(text), clientv3.WithLease(l.id))
}

// delete deletes a key that is as it was read.
func (k *lockKey) delete() clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{modifiedAt(k.key, k.modified)}, []clientv3.Op{clientv3.OpDelete(k.key)}, nil)
}

// takenOver returns the state for a hold whose key is about to be moved here. It is there before
// the write, so that the hold ends also if the write has no answer.
func (s *owners) takenOver(h *driver.Hold, k *lockKey, start time.Time, life time.Duration) *ownerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.byOwner[h.Owner]
	if o != nil && o.name != h.Name {
		return nil
	}
	if o == nil || o.key != k.key || o.created != k.created {
		var onLost func()
		if o != nil {
			onLost = o.onLost
			s.forgetLocked(o)
		}
		o = s.newState(h.Name, h.Owner)
		s.setKey(o, k.key)
		o.created, o.onLost = k.created, onLost
	}
	o.modified, o.lease, o.fence = k.modified, nil, cmp.Or(k.Fence, uint64(k.modified))
	o.mode, o.limit, o.life, o.unknown = k.mode, k.Limit, k.TTL, false
	s.prolong(o, start, life)
	return o
}

// written records that the write of takeOver was executed. It returns false if the state was dropped meanwhile.
func (s *owners) written(o *ownerState, k *lockKey, l *lease, revision int64) bool {
	s.leaseChanged(o, l, revision)
	s.mu.Lock()
	defer s.mu.Unlock()
	return !o.ended
}

// shorten moves the end of a hold to an earlier instant.
func (s *owners) shorten(o *ownerState, deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.deadline = deadline
	s.schedule(o, deadline)
}

const (
	// expireTimeout bounds each request that ends holds, and expireAgain is the pause after one that failed.
	expireTimeout = 3 * time.Second
	expireAgain   = 500 * time.Millisecond
)

// expiring is the end of one Owner's hold or place in progress.
type expiring struct {
	o     *ownerState
	keys  lockQueue // of the Owner, as read
	mine  int       // the first of them are attached to leases of this connection
	gone  int       // so many of these are deleted
	err   error
	again bool // it was prolonged meanwhile
}

// expire deletes the keys of holds and places that were not prolonged, unless another connection has moved them.
func (b *Backend) expire(ctx context.Context, due []*ownerState) {
	all := make([]*expiring, len(due))
	for i, o := range due {
		all[i] = &expiring{o: o}
	}
	b.readExpiring(ctx, all)
	b.owners.confirm(all, b.leases.has)
	b.deleteExpiring(ctx, all)
	for _, e := range all {
		b.finishExpiring(e)
	}
}

// readExpiring reads the keys of Owners.
func (b *Backend) readExpiring(ctx context.Context, all []*expiring) {
	ctx, cancel := context.WithTimeout(ctx, expireTimeout)
	defer cancel()
	var known []*expiring
	var gets []clientv3.Op
	for _, e := range all {
		key, doubtful := b.owners.expiringKey(e.o)
		if doubtful { // the Owner may have other keys
			q, _, err := b.readQueue(ctx, e.o.name)
			e.keys, e.err = q.of(e.o.owner), err
			continue
		}
		known, gets = append(known, e), append(gets, clientv3.OpGet(key))
	}
	if len(gets) == 0 {
		return
	}
	resp, err := b.client.Txn(ctx).Then(gets...).Commit()
	for i, e := range known {
		if e.err = err; err == nil {
			e.keys = parseQueue(b.folder(e.o.name), resp.Responses[i].GetResponseRange().Kvs).of(e.o.owner)
		}
	}
}

// of returns the keys of an Owner.
func (q lockQueue) of(owner string) lockQueue {
	return slices.DeleteFunc(q, func(k lockKey) bool { return k.owner != owner })
}

// expiringKey returns an Owner's key, and whether it may have another one after a call without an answer.
func (s *owners) expiringKey(o *ownerState) (key string, doubtful bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.key, o.created == 0 || o.unknown || o.lateWrite
}

// confirm leaves out what was prolonged since, and puts those keys first that this connection may delete.
func (s *owners) confirm(all []*expiring, has func(clientv3.LeaseID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, e := range all {
		if e.again = e.o.ended || e.o.deadline.After(now); e.again || e.err != nil {
			continue
		}
		for i := range e.keys {
			if has(e.keys[i].lease) {
				e.keys[i], e.keys[e.mine] = e.keys[e.mine], e.keys[i]
				e.mine++
			}
		}
	}
}

// deleteExpiring deletes keys that are as they were read.
func (b *Backend) deleteExpiring(ctx context.Context, all []*expiring) {
	var of []*expiring
	var deletes []clientv3.Op
	for _, e := range all {
		for _, k := range e.keys[:e.mine] {
			of = append(of, e)
			deletes = append(deletes, k.delete())
		}
	}
	if len(deletes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, expireTimeout)
	defer cancel()
	resp, err := b.client.Txn(ctx).Then(deletes...).Commit()
	for i, e := range of {
		switch {
		case err != nil:
			e.err = err
		case resp.Responses[i].GetResponseTxn().Succeeded:
			e.gone++
		}
	}
}

// finishExpiring records what has become of an Owner's keys.
func (b *Backend) finishExpiring(e *expiring) {
	s, o := &b.owners, e.o
	s.mu.Lock()
	o.taken = false
	if e.mine > 0 {
		o.lateDelete = e.err != nil
	}
	now := time.Now()
	moved, late := len(e.keys) > e.mine, false
	for _, k := range e.keys[e.mine:] {
		// A write without an answer, which is to move the key here, may still be executed.
		late = late || o.unknown || o.lateWrite || k.modified == o.modified
	}
	switch {
	case o.ended:
		s.mu.Unlock()
		return
	case e.again, e.err != nil, e.gone < e.mine, late && now.Sub(o.deadline) < tombstoneLife:
		o.expiring = o.lateDelete
		due := now.Add(expireAgain)
		if late {
			due = now.Add(time.Duration(o.life) * time.Second)
		}
		if o.deadline.After(now) {
			due = o.deadline
		}
		s.schedule(o, due)
		s.mu.Unlock()
		return
	case moved:
		s.forgetLocked(o)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.markLost(o)
}

// releaseDetached ends a hold or a place, wherever its key is by now.
func (b *Backend) releaseDetached(ctx context.Context, o *ownerState, h driver.Hold) error {
	b.owners.update(o, func() { o.onLost = nil })
	err := errLostHold(h.Name)
	if o.created > 0 {
		err = b.release(ctx, h.Name, o.key, o.created)
	}
	if errors.Is(err, driver.ErrLost) {
		err = b.releaseOther(ctx, h)
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	b.owners.forget(o)
	if o.created == 0 || o.unknown || o.lateWrite {
		b.owners.tombstones.add(o.key, h.Owner)
	}
	return err
}

// deleteOrphans deletes keys that late writes have created, unless they have found an Owner since.
func (b *Backend) deleteOrphans(ctx context.Context, keys []string) error {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	resp, err := b.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return err
	}
	var deletes []clientv3.Op
	for i, key := range keys {
		for _, kv := range resp.Responses[i].GetResponseRange().Kvs {
			if b.leases.has(clientv3.LeaseID(kv.Lease)) && !b.owners.hasKey(key) {
				k := lockKey{key: key, modified: kv.ModRevision}
				deletes = append(deletes, k.delete())
			}
		}
	}
	for len(deletes) > 0 {
		n := min(len(deletes), expiryBatch)
		if _, err := b.client.Txn(ctx).Then(deletes[:n]...).Commit(); err != nil {
			return err
		}
		deletes = deletes[n:]
	}
	return nil
}

// hasKey reports whether an Owner of this connection has a key.
func (s *owners) hasKey(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key] != nil
}

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

// passTurn deletes the place whose turn it is if it has been so for driver.TurnLife. A waiter that is granted
// writes its key, so the deletion can't hit a hold.
func (b *Backend) passTurn(ctx context.Context, folder string, q lockQueue) {
	if !b.detached {
		return
	}
	i := 0
	for i < len(q) && (!q[i].Later || q[i].TTL == 0) {
		i++
	}
	if i == len(q) || blocker(q[:i], q[i].mode, q[i].Limit) != nil || !b.turns.over(folder, &q[i]) {
		return
	}
	b.client.Txn(ctx).Then(q[i].delete()).Commit() // if it fails, the next attempt does it
}

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
