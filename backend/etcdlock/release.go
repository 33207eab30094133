package etcdlock

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Release ends a hold or a place in the queue, in one round trip if this connection has written its key last.
// For another program's hold it deletes the key that Inspect has seen, and no later one.
func (b *Backend) Release(ctx context.Context, h driver.Hold) error {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	o := b.owners.releasing(h.Owner, h.Name)
	if o == nil || !o.mine {
		return b.releaseStored(ctx, o, h)
	}
	deleted, err := b.delete(ctx, h.Name, o.key, modifiedAt(o.key, o.written))
	switch {
	case err != nil:
		b.owners.update(o, func() { o.late = o.late || outcomeUnknown(err) })
		return err
	case !deleted:
		return b.releaseStored(ctx, o, h)
	}
	b.owners.free(o)
	return nil
}

// releaseStored ends all that is stored for an Owner, wherever it comes from. o may be nil.
func (b *Backend) releaseStored(ctx context.Context, o *ownerState, h driver.Hold) error {
	q, _, err := b.readQueue(ctx, h.Name)
	if err != nil {
		return driver.Unsent(b.fail("look up", h.Name, err))
	}
	found := false
	for i := range q {
		k := &q[i]
		if k.owner != h.Owner {
			continue
		}
		deleted, err := b.delete(ctx, h.Name, k.key, createdAt(k.key, k.created))
		if err != nil && found {
			return fmt.Errorf("%s, after another key of the same Owner was released", err) // so it is not ErrUnsent
		}
		if err != nil {
			return err
		}
		found = found || deleted
	}
	if o != nil {
		if o.created == 0 { // its key may be created yet
			if err := b.leases.revoke(ctx, o.lease.id); err != nil {
				return b.fail("release", h.Name, err)
			}
		}
		b.owners.forget(o)
	}
	if !found {
		return errLostHold(h.Name)
	}
	return nil
}

// delete deletes a key of a lock on a condition. It reports whether it has done so.
func (b *Backend) delete(ctx context.Context, name, key string, cond clientv3.Cmp) (bool, error) {
	resp, err := b.batcher.commit(ctx, b.folder(name), clientv3.OpTxn([]clientv3.Cmp{cond}, []clientv3.Op{clientv3.OpDelete(key)}, nil))
	if err != nil && !outcomeUnknown(err) {
		return false, driver.Unsent(b.fail("release", name, err))
	}
	if err != nil {
		return false, b.fail("release", name, err)
	}
	return resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
}
