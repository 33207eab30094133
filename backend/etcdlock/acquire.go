package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errLeaseEnded ends an attempt whose lease or key has ended. Nothing was acquired, and the attempt
// starts over.
var errLeaseEnded = errors.New("the lease has ended")

// maxRestarts bounds how often an attempt starts over.
const maxRestarts = 4

// Acquire makes one attempt, in one round trip if the shared lease is fresh enough.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := b.validate(&r); err != nil {
		return driver.Grant{}, err
	}
	err = errLeaseEnded
	var g driver.Grant
	for i := 0; i < maxRestarts && errors.Is(err, errLeaseEnded); i++ {
		g, err = b.attempt(ctx, &r)
	}
	if err == nil || errors.Is(err, driver.ErrHeld) {
		if !b.permitted.Load() {
			b.permitted.Store(true)
		}
		return g, err
	}
	return driver.Grant{}, b.failFirst("acquire", r.Name, err)
}

func (b *Backend) validate(r *driver.Request) error {
	if strings.ContainsRune(r.Owner, '/') {
		return fmt.Errorf("%w: owner %q: want one without a slash", driver.ErrInvalid, r.Owner)
	}
	return r.Validate(b.caps)
}

func (b *Backend) attempt(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	start := time.Now()
	o := b.owners.get(r.Owner)
	if o != nil && o.name != r.Name {
		return driver.Grant{}, fmt.Errorf("%w: owner %s has %s already", driver.ErrInvalid, r.Owner, driver.Quote(o.name))
	}
	l, err := b.leaseForOwner(ctx, start, o, r)
	if err != nil {
		if o == nil {
			err = driver.Unsent(err) // the lease has no keys yet
		}
		return driver.Grant{}, err
	}
	switch o = b.owners.get(r.Owner); { // it may have ended with its lease
	case o != nil && o.created > 0:
		return b.reacquire(ctx, start, o, l, r)
	case r.Queue:
		return b.enqueue(ctx, start, l, r, folderEmpty(b.folder(r.Name)))
	}
	return b.try(ctx, start, l, r)
}

// leaseForOwner returns the lease for a request.
func (b *Backend) leaseForOwner(ctx context.Context, start time.Time, o *ownerState, r *driver.Request) (*lease, error) {
	if b.detached {
		return b.leases.forTTL(ctx, b.owners.attempted(o, start, r.TTL))
	}
	current, err := b.leaseOf(ctx, o)
	if err != nil {
		return nil, err
	}
	return b.leaseAfter(ctx, current, r)
}

// leaseForKey returns the lease for a request whose Owner has a key from another connection or an attempt
// without an answer.
func (b *Backend) leaseForKey(ctx context.Context, o *ownerState, own *lockKey, r *driver.Request) (*lease, error) {
	if b.detached {
		return b.leases.forTTL(ctx, max(b.owners.attempted(o, time.Now(), own.life()), r.TTL))
	}
	return b.leaseAfter(ctx, b.leases.byID(own.lease), r)
}

// leaseOf returns the lease of an Owner's key, and reads the key if that isn't known. It returns
// nil if there is no key.
func (b *Backend) leaseOf(ctx context.Context, o *ownerState) (*lease, error) {
	if o == nil {
		return nil, nil
	}
	if o.lease != nil && (o.modified > 0 || o.created == 0) {
		return o.lease, nil
	}
	resp, err := b.client.Get(ctx, o.key)
	if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != o.created {
		return nil, err
	}
	b.owners.update(o, func() { o.modified = resp.Kvs[0].ModRevision })
	return b.leases.byID(clientv3.LeaseID(resp.Kvs[0].Lease)), nil
}

// leaseAfter returns the lease for a request whose Owner may have a key with another one. It keeps
// that lease if its TTL is long enough: an attempt never shortens a hold. A fixed hold gets a
// lease of its own.
func (b *Backend) leaseAfter(ctx context.Context, current *lease, r *driver.Request) (*lease, error) {
	ttl := r.TTL
	if current != nil {
		refresh := b.leases.refresh
		if current.fixed {
			refresh = b.leases.keepAlive
		}
		switch err := refresh(ctx, current); {
		case errors.Is(err, rpctypes.ErrLeaseNotFound): // and the key has ended with it
		case err != nil:
			return nil, err
		case current.lastReply().ttl >= r.TTL && (current.fixed || !r.Fixed):
			return current, nil
		default:
			ttl = max(ttl, current.lastReply().ttl)
		}
	}
	if r.Fixed {
		return b.leases.dedicated(ctx, ttl)
	}
	return b.leases.forTTL(ctx, ttl)
}

// try makes an attempt that writes the key only if the write grants the lock, so that tries never
// block each other. It expects an empty folder. If there are keys that the request may join, as readers join readers, or
// keys of locks with longer names, it writes on the condition that the folder is unchanged. If others write there just then, it
// takes a place in the queue, and leaves it at once if that does not hold: others may go on writing for ever.
func (b *Backend) try(ctx context.Context, start time.Time, l *lease, r *driver.Request) (driver.Grant, error) {
	folder := b.folder(r.Name)
	o, err := b.owners.open(folder, r, l)
	if err != nil {
		return driver.Grant{}, err
	}
	resp, err := b.batcher.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{folderEmpty(folder)}, []clientv3.Op{putKey(o.key, l, r, false)}, []clientv3.Op{getFolder(folder)}))
	if err != nil {
		return driver.Grant{}, b.recordFailure(o, l, err)
	}
	if resp.Succeeded {
		b.recordCreated(o, resp.Header.Revision)
		return b.finishGrant(ctx, o, l, r, start, resp.Header)
	}
	q := parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs)
	if i := q.find(r.Owner); i >= 0 {
		return driver.Grant{}, b.recoverKey(o, &q[i], l)
	}
	err = checkHolders(q, r)
	if err == nil && blocker(q, r.Mode, r.Limit) != nil {
		b.passTurn(ctx, folder, q)
		err = q.heldError()
	}
	if err != nil {
		b.abandon(o, l)
		return driver.Grant{}, err
	}
	b.owners.avoid(o, folder, l, q)
	return b.enqueue(ctx, start, l, r, folderUnchanged(folder, resp.Header.Revision))
}

// recoverKey records the key that an earlier attempt without an answer has written. The attempt starts over with it.
func (b *Backend) recoverKey(o *ownerState, own *lockKey, l *lease) error {
	b.owners.update(o, func() {
		b.owners.rename(o, own.key)
		o.created, o.modified, o.unknown = own.created, own.modified, false
		o.mode, o.limit, o.life = own.mode, own.Limit, max(o.life, own.TTL)
		if own.lease != l.id {
			o.lease = nil
		}
	})
	b.owners.attempted(o, time.Now(), own.life())
	return errLeaseEnded
}

// abandon forgets an Owner whose key was certainly not written.
func (b *Backend) abandon(o *ownerState, l *lease) {
	if o.unknown || o.created > 0 {
		return
	}
	if l != nil && l.fixed && l == o.lease && !o.lateWrite {
		b.owners.update(o, func() { o.lease = nil })
		b.leases.keepSpare(l)
	}
	b.owners.forget(o)
}

// recordFailure records that the write of a key has failed, or may have been executed.
func (b *Backend) recordFailure(o *ownerState, l *lease, err error) error {
	switch isNew := o.created == 0; {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		if isNew {
			b.owners.forget(o)
		}
		return b.leaseError(l, err)
	case !outcomeUnknown(err):
		b.abandon(o, l)
		return driver.Unsent(err) // and the attempt has written nothing else
	case isNew:
		b.owners.update(o, func() { o.unknown, o.lateWrite = true, true })
	}
	return err
}

// leaseError makes an attempt start over if its lease has ended.
func (b *Backend) leaseError(l *lease, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.leases.markEnded(l)
		return errLeaseEnded
	}
	return err
}

func (b *Backend) recordCreated(o *ownerState, revision int64) {
	b.owners.update(o, func() {
		o.created, o.modified, o.unknown = revision, revision, false
		o.expiring, o.lateDelete = false, false
	})
}

// enqueue creates a key at the end of the queue. If nothing blocks it, as under the condition free, it is a hold. A place
// that is not wanted is left again. The Owner has no key, or may have this one from an attempt without an answer.
func (b *Backend) enqueue(ctx context.Context, start time.Time, l *lease, r *driver.Request, free clientv3.Cmp) (driver.Grant, error) {
	folder := b.folder(r.Name)
	o, err := b.owners.open(folder, r, l)
	if err != nil {
		return driver.Grant{}, err
	}
	resp, err := b.batcher.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{free},
		[]clientv3.Op{putKey(o.key, l, r, false)},
		[]clientv3.Op{putNewKey(o.key, l, r), getFolder(folder)}))
	if err != nil {
		return driver.Grant{}, b.recordFailure(o, l, err)
	}
	if resp.Succeeded {
		b.recordCreated(o, resp.Header.Revision)
		return b.finishGrant(ctx, o, l, r, start, resp.Header)
	}
	q := parseQueue(folder, resp.Responses[1].GetResponseRange().Kvs)
	if b.owners.avoid(o, folder, l, q) {
		return driver.Grant{}, errLeaseEnded
	}
	i := q.find(r.Owner)
	if i < 0 {
		return driver.Grant{}, fmt.Errorf("the servers answered without the key %s, which was just written", driver.Quote(o.key))
	}
	own, ahead := &q[i], q[:i]
	if own.key != o.key {
		return b.adopt(ctx, start, o, r, q, i)
	}
	if !resp.Responses[0].GetResponseTxn().Succeeded {
		return driver.Grant{}, b.recoverKey(o, own, l)
	}
	b.recordCreated(o, own.created)
	if checkHolders(ahead, r) != nil {
		return driver.Grant{}, b.dequeue(ctx, o, r)
	}
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		if !r.Queue {
			if _, err := b.deletePlace(ctx, o); err != nil {
				return driver.Grant{}, err
			}
			return driver.Grant{}, q.heldError()
		}
		b.owners.setBlocker(o, ahead, by, resp.Header.Revision)
		b.passTurn(ctx, folder, q)
		return driver.Grant{}, q.heldError()
	}
	if b.detached {
		return b.rewriteKey(ctx, start, o, l, r)
	}
	return b.finishGrant(ctx, o, l, r, start, resp.Header)
}

// dequeue deletes the key of a request that is for another kind of lock than the keys ahead. If
// the keys ahead are gone by then, they may have been a mistake too.
func (b *Backend) dequeue(ctx context.Context, o *ownerState, r *driver.Request) error {
	q, err := b.deletePlace(ctx, o)
	if err != nil {
		return err
	}
	if err := checkHolders(q, r); err != nil {
		return err
	}
	return q.heldError()
}

// deletePlace deletes an Owner's key if it is as this connection has last seen it, and returns the queue without it. If
// there is no answer, a later attempt writes the key, so that the deletion can't hit what that is granted.
func (b *Backend) deletePlace(ctx context.Context, o *ownerState) (lockQueue, error) {
	folder := b.folder(o.name)
	resp, err := b.client.Txn(ctx).If(o.unchanged()).
		Then(getFolder(folder), clientv3.OpDelete(o.key)).Else(getFolder(folder)).Commit()
	if err != nil {
		return nil, b.recordLateDelete(o, err)
	}
	q := parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs)
	if !resp.Succeeded {
		return nil, b.keyChanged(o, q)
	}
	b.owners.forget(o)
	return slices.DeleteFunc(q, func(k lockKey) bool { return k.key == o.key }), nil
}

// recordLateDelete records that a deletion without an answer may hit the key late.
func (b *Backend) recordLateDelete(o *ownerState, err error) error {
	if outcomeUnknown(err) {
		b.owners.update(o, func() { o.lateWrite, o.lateDelete = true, true })
	}
	return err
}

// adopt continues with an older key of the same Owner, which another connection has created: q[i]. The new key, of
// which q has been read, is deleted.
func (b *Backend) adopt(ctx context.Context, start time.Time, o *ownerState, r *driver.Request, q lockQueue, i int) (driver.Grant, error) {
	ahead, own := q[:i], &q[i]
	var drop []clientv3.Op
	for _, k := range q[i+1:] {
		if k.key == o.key {
			drop = append(drop, k.delete())
		}
	}
	if err := checkConversion(own.mode, own.Limit, r); err != nil {
		if _, deleted := b.client.Txn(ctx).Then(drop...).Commit(); deleted != nil {
			return driver.Grant{}, errors.Join(err, b.recordLateDelete(o, deleted))
		}
		b.owners.forget(o)
		return driver.Grant{}, err
	}
	l, err := b.leaseForKey(ctx, o, own, r)
	if err != nil {
		return driver.Grant{}, err
	}
	by := blocker(ahead, r.Mode, r.Limit)
	resp, err := b.client.Txn(ctx).If(modifiedAt(own.key, own.modified)).
		Then(append(drop, putKey(own.key, l, r, by != nil))...).Else(drop...).Commit()
	if err != nil {
		return driver.Grant{}, b.recordLateDelete(o, err)
	}
	if !resp.Succeeded {
		b.owners.forget(o)
		return driver.Grant{}, errLeaseEnded
	}
	b.owners.adopted(o, own)
	b.owners.leaseChanged(o, l, resp.Header.Revision)
	if by != nil {
		b.owners.setBlocker(o, ahead, by, 0)
		return driver.Grant{}, append(ahead, *own).heldError()
	}
	return b.finishGrant(ctx, o, l, r, start, resp.Header)
}

// reacquire makes an attempt for an Owner that has a key. It reads a waiter's queue, and writes a
// hold again, for a greater fence.
func (b *Backend) reacquire(ctx context.Context, start time.Time, o *ownerState, l *lease, r *driver.Request) (driver.Grant, error) {
	if err := checkConversion(o.mode, o.limit, r); err != nil {
		return driver.Grant{}, err
	}
	write := o.fence > 0 || l != o.lease || r.Mode != o.mode || b.owners.mayBeDeleted(o)
	if o.ahead > shortQueue && len(o.blockedWhile) > 0 && !write {
		if err := b.checkBlocked(ctx, o); err != nil {
			return driver.Grant{}, err
		}
	}
	folder := b.folder(r.Name)
	ops := []clientv3.Op{getFolder(folder, clientv3.WithMaxCreateRev(o.created))}
	cond := b.unmoved(o)
	if write {
		cond = o.unchanged()
		b.owners.leaseChanging(o, l)
		ops = append(ops, putKey(o.key, l, r, o.fence == 0))
	}
	resp, err := b.batcher.commit(ctx, folder, clientv3.OpTxn([]clientv3.Cmp{cond}, ops, []clientv3.Op{getFolder(folder)}))
	if err != nil {
		return driver.Grant{}, b.leaseError(l, err)
	}
	q := parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs)
	if !resp.Succeeded {
		return driver.Grant{}, b.keyChanged(o, q)
	}
	if write {
		b.owners.leaseChanged(o, l, resp.Header.Revision)
	}
	b.owners.update(o, func() { o.mode = r.Mode })
	ahead := q[:max(q.find(r.Owner), 0)]
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		if err := checkHolders(ahead, r); err != nil && o.fence == 0 {
			return driver.Grant{}, b.dequeue(ctx, o, r)
		}
		b.owners.setBlocker(o, ahead, by, resp.Header.Revision)
		b.passTurn(ctx, folder, q)
		return driver.Grant{}, q.heldError()
	}
	if !write && r.Mode == driver.Counted || b.detached && o.fence == 0 {
		return b.rewriteKey(ctx, start, o, l, r)
	}
	return b.finishGrant(ctx, o, l, r, start, resp.Header)
}

// checkBlocked refuses a waiter far back in the queue while it is blocked as before: a thousand
// waiters would otherwise read five hundred keys each. It returns nil if the queue must be read.
func (b *Backend) checkBlocked(ctx context.Context, o *ownerState) error {
	conds := append(o.blockedWhile, b.unmoved(o))
	resp, err := b.client.Txn(ctx).If(conds...).Then(clientv3.OpGet(o.front.key)).Commit()
	if err != nil || !resp.Succeeded {
		return err
	}
	first := parseQueue(b.folder(o.name), resp.Responses[0].GetResponseRange().Kvs)
	if len(first) > 0 && first[0].created != o.front.created {
		first = nil // the slot was reused
	}
	b.passTurn(ctx, b.folder(o.name), first)
	return first.heldError()
}

// rewriteKey writes the key of a semaphore's waiter that is granted: only a write has a revision
// that no other permit's answer has. It also writes the key of a detached waiter: other connections
// distinguish holds from places by it.
func (b *Backend) rewriteKey(ctx context.Context, start time.Time, o *ownerState, l *lease, r *driver.Request) (driver.Grant, error) {
	folder := b.folder(r.Name)
	resp, err := b.client.Txn(ctx).If(o.unchanged()).
		Then(putKey(o.key, l, r, false)).Else(getFolder(folder)).Commit()
	if err != nil {
		return driver.Grant{}, b.leaseError(l, err)
	}
	if !resp.Succeeded {
		return driver.Grant{}, b.keyChanged(o, parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs))
	}
	b.owners.leaseChanged(o, l, resp.Header.Revision)
	return b.finishGrant(ctx, o, l, r, start, resp.Header)
}

// keyChanged records that a key is gone, or that an earlier attempt without an answer was executed
// meanwhile. The attempt starts over.
func (b *Backend) keyChanged(o *ownerState, q lockQueue) error {
	if i := q.find(o.owner); i >= 0 && q[i].key == o.key && q[i].created == o.created {
		b.owners.update(o, func() { o.lease, o.modified, o.life = nil, q[i].modified, max(o.life, q[i].TTL) })
		b.owners.attempted(o, time.Now(), q[i].life())
	} else {
		b.owners.forget(o)
	}
	return errLeaseEnded
}

// finishGrant makes the key a hold, with the revision of the answer as its fence.
func (b *Backend) finishGrant(ctx context.Context, o *ownerState, l *lease, r *driver.Request, start time.Time, answer *pb.ResponseHeader) (driver.Grant, error) {
	if err := b.leases.ensureTerm(ctx, l, answer.RaftTerm); err != nil {
		return driver.Grant{}, b.leaseError(l, err)
	}
	fence := uint64(answer.Revision)
	ended := false
	b.owners.update(o, func() {
		o.fence, o.mode, o.limit, o.onLost = fence, r.Mode, r.Limit, r.OnLost
		o.ahead, o.keysAhead, o.blocker, o.blockedWhile = 0, nil, "", nil
		ended = o.ended || o.expiring
	})
	if ended { // found by another call, before there was an OnLost to call
		return driver.Grant{}, errLeaseEnded
	}
	b.owners.delayed.add(o)
	if b.detached {
		return driver.Grant{Fence: fence, Fences: 1, TTL: r.TTL}, b.closedMeanwhile()
	}
	return driver.Grant{Fence: fence, Fences: 1, TTL: l.lastReply().expiry().Sub(start)}, nil
}

// unmoved holds if the key is the one that was created, and, if other connections may move it, unchanged.
func (b *Backend) unmoved(o *ownerState) clientv3.Cmp {
	if b.detached {
		return o.unchanged()
	}
	return createdAt(o.key, o.created)
}

// unchanged holds if the key is as this connection has last seen it. If that is not known, it must be the one that was
// created: that no revision has modified it would mean that it is gone.
func (o *ownerState) unchanged() clientv3.Cmp {
	if o.modified == 0 {
		return createdAt(o.key, o.created)
	}
	return modifiedAt(o.key, o.modified)
}

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
