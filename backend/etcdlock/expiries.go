package etcdlock

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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

func (h expiryHeap) Len() int { return len(h) }

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
		s.update(o, func() { s.rename(o, s.ownKey(folder, o.owner, l)) })
	}
	return used
}

// mayBeDeleted reports whether a deletion of an Owner's key is under way, or may still be executed. Then only a
// write keeps the key.
func (s *owners) mayBeDeleted(o *ownerState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.expiring || o.lateDelete
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
	case o.life < seconds(h.TTL):
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
//
// Until that write, the connection that had the key may have promised a life that begins as late as now.
func (s *owners) written(o *ownerState, k *lockKey, l *lease, revision int64) bool {
	s.leaseChanged(o, l, revision)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prolong(o, time.Now(), k.life())
	return !o.ended
}

// expiringKey returns an Owner's key, and whether it may have another one after a call without an answer.
func (s *owners) expiringKey(o *ownerState) (key string, unknown bool) {
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
			if !has(e.keys[i].lease) {
				continue
			}
			if k := &e.keys[i]; e.o.modified != 0 && k.modified != e.o.modified {
				// The write of takeOver had no answer: see written.
				e.o.modified, e.again = k.modified, true
				s.prolong(e.o, now, k.life())
				break
			}
			e.keys[i], e.keys[e.mine] = e.keys[e.mine], e.keys[i]
			e.mine++
		}
	}
}

// hasKey reports whether an Owner of this connection has a key.
func (s *owners) hasKey(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key] != nil
}
