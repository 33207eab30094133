package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var errUpgrade = fmt.Errorf("%w: a read hold can't become a write hold", driver.ErrUnsupported)

// reacquire asks for an Owner that has a key. A place in line is looked at, and a hold is
// written again, for a greater fence.
func (b *Backend) reacquire(ctx context.Context, start time.Time, c *ownerState, l *lease, r *driver.Request) (driver.Grant, error) {
	if err := checkConversion(c.mode, c.limit, r); err != nil {
		return driver.Grant{}, err
	}
	write := c.fence > 0 || l != c.lease || r.Mode != c.mode
	if c.position > shortQueue && len(c.blockedWhile) > 0 && !write {
		if err := b.checkBlocked(ctx, c); err != nil {
			return driver.Grant{}, err
		}
	}
	folder := b.folder(r.Name)
	look := []clientv3.Op{
		clientv3.OpGet(folder, clientv3.WithRange(folderEnd(folder)), clientv3.WithMaxCreateRev(c.created)),
		clientv3.OpGet(folder, clientv3.WithRange(folderEnd(folder)), clientv3.WithCountOnly()),
	}
	is := createdAt(c.key, c.created)
	if write {
		is = modifiedAt(c.key, c.modified)
		b.owners.leaseChanging(c, l)
		look = append(look, putKey(c.key, l, r, c.fence == 0))
	}
	resp, err := b.batcher.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{is}, look, []clientv3.Op{getFolder(folder)}))
	if err != nil {
		return driver.Grant{}, b.leaseError(l, err)
	}
	if !resp.Succeeded {
		return driver.Grant{}, b.keyChanged(c, parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs))
	}
	if write {
		b.owners.leaseChanged(c, l, resp.Header.Revision)
	}
	b.owners.update(c, func() { c.mode = r.Mode })
	kvs := resp.Responses[0].GetResponseRange().Kvs
	all := parseQueue(folder, kvs)
	ahead := all[:max(all.find(r.Owner), 0)]
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		if err := checkHolders(ahead, r); err != nil && c.fence == 0 {
			return driver.Grant{}, b.removeRefused(ctx, c, r)
		}
		b.owners.setBlocker(c, ahead, by)
		return driver.Grant{}, all.heldError()
	}
	queued := resp.Responses[1].GetResponseRange().Count > int64(len(kvs))
	if !write && r.Mode == driver.Counted {
		return b.rewriteKey(ctx, start, c, l, r)
	}
	return b.finishGrant(ctx, c, l, r, start, resp.Header, queued)
}

// shortQueue is how many others a place in line may have before it if they are all to be
// read with each attempt.
const shortQueue = 16

// checkBlocked refuses a place in a long line while what keeps it out is as it was: a thousand
// who wait would else read five hundred keys each. nil: it takes a closer look.
func (b *Backend) checkBlocked(ctx context.Context, c *ownerState) error {
	resp, err := b.client.Txn(ctx).If(append(c.blockedWhile, createdAt(c.key, c.created))...).Then(clientv3.OpGet(c.front.key)).Commit()
	if err != nil || !resp.Succeeded {
		return err
	}
	first := parseQueue(b.folder(c.name), resp.Responses[0].GetResponseRange().Kvs)
	if len(first) > 0 && first[0].created != c.front.created {
		first = nil // somebody else has that key by now
	}
	return first.heldError()
}

// blockedWhile is what has to change before a request can be let in: the key that blocks it
// goes, or, for readers, becomes one's; of a semaphore, one of the last permits before it.
// Where these are many, there is nothing to compare.
func blockedWhile(ahead lockQueue, by *lockKey, mode driver.Mode, limit int) []clientv3.Cmp {
	switch {
	case mode == driver.Read:
		return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(by.key), "=", by.modified)}
	case mode != driver.Counted || by.mode != driver.Counted || by.Limit != limit:
		return []clientv3.Cmp{createdAt(by.key, by.created)}
	case limit > shortQueue:
		return nil
	}
	var are []clientv3.Cmp
	for _, e := range ahead[len(ahead)-limit:] {
		are = append(are, createdAt(e.key, e.created))
	}
	return are
}

// rewriteKey writes the key of a permit that came out of the line: only a write has a
// revision that no other permit's answer has.
func (b *Backend) rewriteKey(ctx context.Context, start time.Time, c *ownerState, l *lease, r *driver.Request) (driver.Grant, error) {
	folder := b.folder(r.Name)
	resp, err := b.client.Txn(ctx).If(modifiedAt(c.key, c.modified)).Then(putKey(c.key, l, r, false)).Else(getFolder(folder)).Commit()
	if err != nil {
		return driver.Grant{}, b.leaseError(l, err)
	}
	if !resp.Succeeded {
		return driver.Grant{}, b.keyChanged(c, parseQueue(folder, resp.Responses[0].GetResponseRange().Kvs))
	}
	b.owners.leaseChanged(c, l, resp.Header.Revision)
	return b.finishGrant(ctx, c, l, r, start, resp.Header, false)
}

// keyChanged is for a key that is not as it was: it is gone, or an earlier attempt without an
// answer was done meanwhile, from which the next goes on.
func (b *Backend) keyChanged(c *ownerState, all lockQueue) error {
	if i := all.find(c.owner); i >= 0 && all[i].key == c.key && all[i].created == c.created {
		b.owners.update(c, func() { c.lease, c.modified = nil, all[i].modified })
	} else {
		b.owners.forget(c)
	}
	return errLeaseEnded
}

// leaseError looks for the one refusal that an attempt can do something about.
func (b *Backend) leaseError(l *lease, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.leases.markEnded(l)
		return errLeaseEnded
	}
	return err
}
