package etcdlock

import (
	"context"
	"errors"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Release ends a hold or a place in the queue, in one round trip if this backend has created it.
// For another program's hold it deletes the key that Inspect has seen, and no later one.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	o := b.owners.get(h.Owner)
	if o == nil || o.name != h.Name {
		return b.releaseOther(ctx, h)
	}
	if b.detached {
		return b.releaseDetached(ctx, o, h)
	}
	// Without the key's revision the deletion hits the key of any Owner: it must not be reused
	// soon.
	b.owners.update(o, func() { o.onLost, o.lateWrite = nil, o.lateWrite || o.created == 0 })
	err = b.release(ctx, h.Name, o.key, o.created)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	b.owners.forget(o)
	if o.unknown || o.lateWrite {
		b.owners.tombstones.add(o.key, h.Owner)
	}
	return err
}

// releaseOther ends a hold that another connection or another program has.
func (b *Backend) releaseOther(ctx context.Context, h driver.Hold) error {
	q, _, err := b.readQueue(ctx, h.Name)
	if err != nil {
		return b.fail("look up", h.Name, err)
	}
	i := q.find(h.Owner)
	if i < 0 {
		return errLostHold(h.Name)
	}
	for j := i + 1; j < len(q); j++ {
		if q[j].owner == h.Owner { // from an attempt that arrived late
			if err := b.release(ctx, h.Name, q[j].key, q[j].created); err != nil && !errors.Is(err, driver.ErrLost) {
				return err
			}
		}
	}
	return b.release(ctx, h.Name, q[i].key, q[i].created)
}

// release deletes the key of a lock that was created at a revision; 0: unknown.
func (b *Backend) release(ctx context.Context, name, key string, created int64) error {
	var conds []clientv3.Cmp
	if created > 0 {
		conds = append(conds, createdAt(key, created))
	}
	resp, err := b.batcher.commit(ctx, b.folder(name), clientv3.OpTxn(conds, []clientv3.Op{clientv3.OpDelete(key)}, nil))
	if err != nil {
		return b.fail("release", name, err)
	}
	if !resp.Succeeded || resp.Responses[0].GetResponseDeleteRange().Deleted == 0 {
		return errLostHold(name)
	}
	return nil
}

// readQueue reads the keys of a lock, and the leader's term.
func (b *Backend) readQueue(ctx context.Context, name string) (lockQueue, uint64, error) {
	folder := b.folder(name)
	resp, err := b.client.Get(ctx, folder, clientv3.WithRange(folderEnd(folder)))
	if err != nil {
		return nil, 0, err
	}
	return parseQueue(folder, resp.Kvs), resp.Header.RaftTerm, nil
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

// deleteKeys deletes keys that late writes have created, and returns those that need no repetition. A key that has
// found an Owner since is kept, as is a detached one that has left for another connection.
func (b *Backend) deleteKeys(ctx context.Context, keys []string) (done []string) {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	var orphans []string
	var deletes []clientv3.Op
	for i, r := range b.commitEach(ctx, gets) {
		kvs := r.GetResponseRange().GetKvs()
		switch key := keys[i]; {
		case len(kvs) > 0 && (!b.detached || b.leases.has(clientv3.LeaseID(kvs[0].Lease))) && !b.owners.hasKey(key):
			k := lockKey{key: key, modified: kvs[0].ModRevision}
			orphans, deletes = append(orphans, key), append(deletes, k.delete())
		case r.err == nil:
			done = append(done, key)
		}
	}
	return append(done, b.deleteAll(ctx, orphans, deletes)...)
}

// deleteAll deletes keys, and returns those that need no repetition.
func (b *Backend) deleteAll(ctx context.Context, keys []string, deletes []clientv3.Op) (done []string) {
	for i, r := range b.commitEach(ctx, deletes) {
		if r.err == nil {
			done = append(done, keys[i])
		}
	}
	return done
}

// result is the outcome of one operation.
type result struct {
	*pb.ResponseOp
	err error
}

// commitEach executes operations that don't depend on each other: in one transaction, or in several if the server
// refuses that one, since it allows fewer operations in one, or since the user may not touch one of the keys.
func (b *Backend) commitEach(ctx context.Context, ops []clientv3.Op) []result {
	if len(ops) == 0 {
		return nil
	}
	resp, err := b.client.Txn(ctx).Then(ops...).Commit()
	if half := len(ops) / 2; half > 0 && (errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrPermissionDenied)) {
		return append(b.commitEach(ctx, ops[:half]), b.commitEach(ctx, ops[half:])...)
	}
	results := make([]result, len(ops))
	for i := range results {
		if results[i].err = err; err == nil {
			results[i].ResponseOp = resp.Responses[i]
		}
	}
	return results
}
