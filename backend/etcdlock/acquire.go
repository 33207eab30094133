package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// attempt is one attempt to hold.
type attempt struct {
	*driver.Request
	b      *Backend
	start  time.Time
	folder string
}

// Acquire makes one attempt, in one round trip if there is an idle lease.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := r.Validate(b.caps); err != nil {
		return driver.Grant{}, err
	}
	for looks := 1; ; looks++ {
		a := attempt{&r, b, time.Now(), b.folder(r.Name)}
		g, err := a.run(ctx)
		switch {
		case err == nil, errors.Is(err, driver.ErrHeld):
			if !b.permitted.Load() {
				b.permitted.Store(true)
			}
			return g, err
		case looks == maxLooks, !errors.Is(err, errChanged):
			return driver.Grant{}, b.failFirst("acquire", r.Name, err)
		}
	}
}

func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	switch o := a.b.owners.get(a.Owner); {
	case o == nil:
		return a.create(ctx)
	case o.name != a.Name:
		return driver.Grant{}, fmt.Errorf("%w: owner %s has %s already", driver.ErrInvalid, a.Owner, driver.Quote(o.name))
	case o.written == 0:
		return driver.Grant{}, a.b.look(ctx, o)
	case o.fence > 0:
		return a.acquireAgain(ctx, o)
	default:
		return a.retry(ctx, o)
	}
}

// create makes an attempt for an Owner without a key.
func (a *attempt) create(ctx context.Context) (driver.Grant, error) {
	l, err := a.b.leases.take(ctx, a.TTL)
	if err != nil {
		return driver.Grant{}, driver.Unsent(err) // the lease has no key yet
	}
	kept := a.b.leases.prolong(ctx, l, a.start.Add(a.TTL))
	if a.Queue {
		return a.enqueue(ctx, l, kept, folderEmpty(a.folder))
	}
	return a.try(ctx, l, kept)
}

// try makes an attempt that writes the key only if the write grants the lock, so that tries never
// block each other. It expects an empty folder. If there are keys that the request may join, as readers join readers, or
// keys of locks with longer names, it writes on the condition that the folder is unchanged. If others write there just then, it
// takes a place in the queue, and leaves it at once if that does not hold: others may go on writing for ever.
func (a *attempt) try(ctx context.Context, l *lease, kept <-chan struct{}) (driver.Grant, error) {
	key := keyOf(a.folder, l.id)
	resp, err := a.b.batcher.commit(ctx, a.folder, clientv3.OpTxn(
		[]clientv3.Cmp{folderEmpty(a.folder)}, []clientv3.Op{putKey(key, l.id, a.Request, false)}, []clientv3.Op{getFolder(a.folder)}))
	if err != nil {
		return driver.Grant{}, a.createFailed(key, l, err)
	}
	if resp.Succeeded {
		return a.granted(ctx, a.b.owners.add(a.Request, key, l, resp.Header.Revision), kept, resp.Header)
	}
	q := parseQueue(a.folder, resp.Responses[0].GetResponseRange().Kvs)
	if i := q.find(a.Owner); i >= 0 {
		a.b.leases.put(l)
		a.b.owners.found(nil, a.Name, &q[i])
		return driver.Grant{}, errChanged
	}
	err = checkLimit(q, a.Request)
	if err == nil && blocker(q, a.Mode, a.Limit) != nil {
		err = a.refusal(ctx, q)
	}
	if err != nil {
		a.b.leases.put(l)
		return driver.Grant{}, err
	}
	return a.enqueue(ctx, l, kept, folderUnchanged(a.folder, resp.Header.Revision))
}

// createFailed records that the write of a new key has failed, or may be executed yet.
func (a *attempt) createFailed(key string, l *lease, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		a.b.leases.forgetIdle()
		return errChanged
	case !outcomeUnknown(err):
		a.b.leases.put(l)
		return driver.Unsent(err)
	}
	a.b.owners.add(a.Request, key, l, 0)
	return err
}

// enqueue creates a key at the end of the queue. Under the condition free it is a hold. Otherwise it is a place: it becomes
// a hold if nothing blocks it, and is left again if it is not wanted.
func (a *attempt) enqueue(ctx context.Context, l *lease, kept <-chan struct{}, free clientv3.Cmp) (driver.Grant, error) {
	key := keyOf(a.folder, l.id)
	resp, err := a.b.batcher.commit(ctx, a.folder, clientv3.OpTxn(
		[]clientv3.Cmp{free},
		[]clientv3.Op{putKey(key, l.id, a.Request, false)},
		[]clientv3.Op{putKey(key, l.id, a.Request, true), getFolder(a.folder)}))
	if err != nil {
		return driver.Grant{}, a.createFailed(key, l, err)
	}
	o := a.b.owners.add(a.Request, key, l, resp.Header.Revision)
	if resp.Succeeded {
		return a.granted(ctx, o, kept, resp.Header)
	}
	q := parseQueue(a.folder, resp.Responses[1].GetResponseRange().Kvs)
	i := q.find(a.Owner)
	switch {
	case i < 0:
		return driver.Grant{}, fmt.Errorf("the servers answered without the key %s, which was just written", driver.Quote(key))
	case q[i].key != key: // from an attempt through another connection
		if _, err := a.leave(ctx, o); err != nil {
			return driver.Grant{}, err
		}
		a.b.owners.found(nil, a.Name, &q[i])
		return driver.Grant{}, errChanged
	}
	if !a.Queue && checkLimit(q[:i], a.Request) == nil && blocker(q[:i], a.Mode, a.Limit) != nil {
		if _, err := a.leave(ctx, o); err != nil {
			return driver.Grant{}, err
		}
		return driver.Grant{}, q.heldError(0)
	}
	if kept != nil {
		<-kept
	}
	return a.wait(ctx, o, q, i, resp.Header)
}

// wait makes an Owner's place q[i] a hold, if nothing blocks it, or stays in the queue.
func (a *attempt) wait(ctx context.Context, o *ownerState, q lockQueue, i int, answer *pb.ResponseHeader) (driver.Grant, error) {
	ahead := q[:i]
	by := blocker(ahead, a.Mode, a.Limit)
	switch {
	case checkLimit(ahead, a.Request) != nil:
		return driver.Grant{}, a.leaveOtherLimit(ctx, o)
	case by == nil:
		return a.promote(ctx, o)
	}
	a.b.owners.setBlocker(o, ahead, by, answer.Revision)
	refusal := a.refusal(ctx, q)
	refusal.Signaled = a.Queue && !slices.ContainsFunc(ahead, func(k lockKey) bool { return k.Later }) // the turn of a dead one passes silently
	if err := a.b.secure(ctx, o, a.start, a.TTL, answer.RaftTerm); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{}, refusal
}

// leaveOtherLimit deletes the place of a request with another limit than the permits ahead. If
// these are gone by then, they may have been a mistake too.
func (a *attempt) leaveOtherLimit(ctx context.Context, o *ownerState) error {
	q, err := a.leave(ctx, o)
	if err != nil {
		return err
	}
	if err := checkLimit(q, a.Request); err != nil {
		return err
	}
	return q.heldError(0)
}

// leave deletes an Owner's place, and returns the queue without it. If there is no answer, a later attempt writes the
// key, so that the deletion can't hit what that is granted.
func (a *attempt) leave(ctx context.Context, o *ownerState) (lockQueue, error) {
	resp, err := a.b.client.Txn(ctx).If(modifiedAt(o.key, o.written)).
		Then(getFolder(a.folder), clientv3.OpDelete(o.key)).Commit()
	if err != nil {
		a.b.owners.doubt(o, outcomeUnknown(err))
		return nil, err
	}
	if !resp.Succeeded {
		a.b.owners.doubt(o, false)
		return nil, errChanged
	}
	a.b.owners.free(o)
	q := parseQueue(a.folder, resp.Responses[0].GetResponseRange().Kvs)
	return slices.DeleteFunc(q, func(k lockKey) bool { return k.key == o.key }), nil
}

// retry makes an attempt for a waiter. If its key is the oldest one, or all that blocked it is gone, it is granted by one
// transaction.
func (a *attempt) retry(ctx context.Context, o *ownerState) (driver.Grant, error) {
	if err := checkConversion(o, a.Request); err != nil {
		return driver.Grant{}, err
	}
	var kept <-chan struct{}
	if o.lease.own {
		kept = a.b.leases.prolong(ctx, o.lease, a.start.Add(a.TTL))
	}
	if o.ahead > shortQueue && len(o.blockedWhile) > 0 {
		if err := a.checkBlocked(ctx, o, kept); err != nil {
			return driver.Grant{}, err
		}
	}
	free := o.freeWhen
	if len(free) == 0 {
		free = []clientv3.Cmp{folderFrom(a.folder, o.created)}
	}
	resp, err := a.b.batcher.commit(ctx, a.folder, clientv3.OpTxn(
		append([]clientv3.Cmp{modifiedAt(o.key, o.written)}, free...),
		[]clientv3.Op{putKey(o.key, o.lease.id, a.Request, false)},
		[]clientv3.Op{getFolder(a.folder, clientv3.WithMaxCreateRev(o.created))}))
	if err != nil {
		return driver.Grant{}, a.writeFailed(o, err)
	}
	if resp.Succeeded {
		a.b.owners.wrote(o, resp.Header.Revision)
		return a.granted(ctx, o, kept, resp.Header)
	}
	if kept != nil {
		<-kept
	}
	q := parseQueue(a.folder, resp.Responses[0].GetResponseRange().Kvs)
	i := q.find(a.Owner)
	if i < 0 || q[i].key != o.key || q[i].modified != o.written {
		a.b.owners.doubt(o, false)
		return driver.Grant{}, errChanged
	}
	return a.wait(ctx, o, q, i, resp.Header)
}

// checkBlocked refuses a waiter far back in the queue while it is blocked as before: a thousand
// waiters would otherwise read five hundred keys each. It returns nil if the queue must be read.
func (a *attempt) checkBlocked(ctx context.Context, o *ownerState, kept <-chan struct{}) error {
	conds := append(o.blockedWhile, modifiedAt(o.key, o.written))
	resp, err := a.b.client.Txn(ctx).If(conds...).Then(clientv3.OpGet(o.front.key)).Commit()
	if err != nil || !resp.Succeeded {
		return err
	}
	if kept != nil {
		<-kept
	}
	if err := a.b.secure(ctx, o, a.start, a.TTL, resp.Header.RaftTerm); err != nil {
		return err
	}
	first := parseQueue(a.folder, resp.Responses[0].GetResponseRange().Kvs)
	if len(first) > 0 && first[0].created != o.front.created {
		first = nil // its lease has another key by now
	}
	return a.refusal(ctx, first)
}

// promote writes the key of a waiter that nothing blocks. Other connections tell a hold from a place by that, and only a
// write has a revision that no other permit's answer has.
func (a *attempt) promote(ctx context.Context, o *ownerState) (driver.Grant, error) {
	resp, err := a.b.client.Txn(ctx).If(modifiedAt(o.key, o.written)).Then(putKey(o.key, o.lease.id, a.Request, false)).Commit()
	return a.rewritten(ctx, o, resp, err)
}

// acquireAgain writes the key of a holder, for a greater fence.
func (a *attempt) acquireAgain(ctx context.Context, o *ownerState) (driver.Grant, error) {
	if err := checkConversion(o, a.Request); err != nil {
		return driver.Grant{}, err
	}
	resp, err := a.b.batcher.commit(ctx, a.folder, clientv3.OpTxn(
		[]clientv3.Cmp{modifiedAt(o.key, o.written)}, []clientv3.Op{putKey(o.key, o.lease.id, a.Request, false)}, nil))
	return a.rewritten(ctx, o, resp, err)
}

func (a *attempt) rewritten(ctx context.Context, o *ownerState, resp *clientv3.TxnResponse, err error) (driver.Grant, error) {
	switch {
	case err != nil:
		return driver.Grant{}, a.writeFailed(o, err)
	case !resp.Succeeded:
		a.b.owners.doubt(o, false)
		return driver.Grant{}, errChanged
	}
	a.b.owners.wrote(o, resp.Header.Revision)
	return a.granted(ctx, o, nil, resp.Header)
}

// writeFailed records that a write to an Owner's key has failed, or may be executed yet.
func (a *attempt) writeFailed(o *ownerState, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		a.b.owners.doubt(o, false)
		return errChanged
	case outcomeUnknown(err):
		a.b.owners.doubt(o, true)
	}
	return err
}

// granted makes the key that was just written a hold, with the revision of the answer as its fence. kept is closed when
// the lease was kept alive; nil: it needs not be.
func (a *attempt) granted(ctx context.Context, o *ownerState, kept <-chan struct{}, answer *pb.ResponseHeader) (driver.Grant, error) {
	if kept != nil {
		<-kept
	}
	if err := a.b.secure(ctx, o, a.start, a.TTL, answer.RaftTerm); err != nil {
		return driver.Grant{}, err
	}
	fence := uint64(answer.Revision)
	if !a.b.owners.granted(o, a.Request, fence) {
		return driver.Grant{}, errChanged
	}
	return driver.Grant{Fence: fence, Fences: 1, TTL: a.TTL}, nil
}

// refusal says who holds, and when the turn of a free lock is over. It deletes the places whose turn is over now. A waiter that is
// granted writes its key, so the deletion can't hit a hold.
func (a *attempt) refusal(ctx context.Context, q lockQueue) *driver.HeldError {
	over, rest, left := a.b.turns.over(q)
	if len(over) > 0 {
		var deletions []clientv3.Op
		for _, k := range over[:min(len(over), maxBatch)] {
			deletions = append(deletions, k.delete())
		}
		a.b.client.Txn(ctx).Then(deletions...).Commit() // if it fails, the next attempt does it
		_, _, left = a.b.turns.over(rest)
	}
	return q.heldError(min(left, a.b.caps.MinTTL)) // the place may end sooner than its turn
}
