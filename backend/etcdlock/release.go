package etcdlock

import (
	"context"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Release ends a hold or a place in line, in one round trip if this backend has made it.
// Of another program's hold it deletes the key that Inspect has seen, and no later one.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	c := b.owners.get(h.Owner)
	if c == nil || c.name != h.Name {
		return b.releaseOther(ctx, h)
	}
	// A key whose revision is not known is deleted whoever has it: nobody must get it soon.
	b.owners.update(c, func() { c.onLost, c.lateWrite = nil, c.lateWrite || c.created == 0 })
	deleted, err := b.delete(ctx, h.Name, c.key, c.created)
	if err != nil {
		return b.fail("release", h.Name, err)
	}
	b.owners.forget(c)
	if c.unknown || c.lateWrite {
		b.tombstones.add(c.key, h.Owner)
	}
	if !deleted {
		return errLostHold(h.Name)
	}
	return nil
}

// delete deletes a key of a lock, the one that was created then if that is known.
func (b *Backend) delete(ctx context.Context, name, key string, create int64) (bool, error) {
	var is []clientv3.Cmp
	if create > 0 {
		is = append(is, createdAt(key, create))
	}
	resp, err := b.batcher.commit(ctx, b.folder(name), clientv3.OpTxn(is, []clientv3.Op{clientv3.OpDelete(key)}, nil))
	if err != nil {
		return false, err
	}
	return resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}

// releaseOther ends what another connection or another program has.
func (b *Backend) releaseOther(ctx context.Context, h driver.Hold) error {
	e, err := b.findKey(ctx, h)
	if err != nil {
		return err
	}
	deleted, err := b.delete(ctx, h.Name, e.key, e.created)
	if err != nil {
		return b.fail("release", h.Name, err)
	}
	if !deleted {
		return errLostHold(h.Name)
	}
	return nil
}

// findKey finds the key of an Owner who is not known here. ErrLost: there is none.
func (b *Backend) findKey(ctx context.Context, h driver.Hold) (*lockKey, error) {
	all, err := b.readQueue(ctx, h.Name)
	if err != nil {
		return nil, b.fail("look up", h.Name, err)
	}
	place := all.find(h.Owner)
	if place < 0 {
		return nil, errLostHold(h.Name)
	}
	return &all[place], nil
}

// readQueue reads the keys of a lock.
func (b *Backend) readQueue(ctx context.Context, name string) (lockQueue, error) {
	all, _, err := b.readQueueTerm(ctx, name)
	return all, err
}

// readQueueTerm also answers the leader's term.
func (b *Backend) readQueueTerm(ctx context.Context, name string) (lockQueue, uint64, error) {
	folder := b.folder(name)
	resp, err := b.client.Get(ctx, folder, clientv3.WithRange(folderEnd(folder)))
	if err != nil {
		return nil, 0, err
	}
	return parseQueue(folder, resp.Kvs), resp.Header.RaftTerm, nil
}
