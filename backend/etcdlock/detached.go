package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Detached holds (Options.Detached) share leases as others do, but they don't live as long as these. The
// connection to whose lease a key is attached ends the hold after its TTL. Another connection that renews the
// hold, or acquires for its Owner, moves the key to its own lease. If the connection dies, the lease ends
// what was not moved.
//
// Three rules make that safe:
//
//   - A lease lives for half as long again as its holds. Its rest is at least the TTL of
//     a hold when an answer relies on it, so a hold outlives a connection that dies with the answer.
//   - Every deletion, and every write to an existing key, is on the condition that the key is as it was
//     read. Of a deletion and a renewal that meet, one fails; a late one fails too.
//   - A renewal that writes nothing is only for a key that this connection has written last, and counts
//     from before the call. From the moment in which a deletion is decided on, renewals write.

const (
	// expireTimeout bounds each request that ends holds. expireAgain is the pause after one that failed, and
	// expireRefused after one that the user may not make now.
	expireTimeout = 3 * time.Second
	expireAgain   = 500 * time.Millisecond
	expireRefused = 3 * time.Second
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
		key, unknown := b.owners.expiringKey(e.o)
		if unknown { // the Owner may have other keys
			q, _, err := b.readQueue(ctx, e.o.name)
			e.keys, e.err = q.of(e.o.owner), err
			continue
		}
		known, gets = append(known, e), append(gets, clientv3.OpGet(key))
	}
	for i, r := range b.commitEach(ctx, gets) {
		e := known[i]
		e.keys, e.err = parseQueue(b.folder(e.o.name), r.GetResponseRange().GetKvs()).of(e.o.owner), r.err
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
	ctx, cancel := context.WithTimeout(ctx, expireTimeout)
	defer cancel()
	for i, r := range b.commitEach(ctx, deletes) {
		switch {
		case r.err != nil:
			of[i].err = r.err
		case r.GetResponseTxn().Succeeded:
			of[i].gone++
		}
	}
}

// finishExpiring records what has become of an Owner's keys.
func (b *Backend) finishExpiring(e *expiring) {
	s, o := &b.owners, e.o
	s.mu.Lock()
	o.taken = false
	refused := deniesUser(e.err)
	if e.mine > 0 {
		o.lateDelete = e.err != nil && !refused
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
		switch {
		case late:
			due = now.Add(time.Duration(o.life) * time.Second)
		case refused:
			due = now.Add(expireRefused)
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
