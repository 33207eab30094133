package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errLeaseEnded ends an attempt whose lease turned out to have ended, or whose key has: it
// begins anew, and nothing was taken.
var errLeaseEnded = errors.New("the lease has ended")

// maxRestarts bounds how often an attempt begins anew.
const maxRestarts = 4

// Acquire makes one attempt: in one round trip, if the shared lease is fresh enough.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, err := b.prepare(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := validRequest(&r); err != nil {
		return driver.Grant{}, err
	}
	err = errLeaseEnded
	var g driver.Grant
	for i := 0; i < maxRestarts && errors.Is(err, errLeaseEnded); i++ {
		g, err = b.attempt(ctx, &r)
	}
	if err == nil || errors.Is(err, driver.ErrHeld) {
		return g, err
	}
	return driver.Grant{}, b.fail("acquire", r.Name, err)
}

func (b *Backend) attempt(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	start := time.Now()
	c := b.owners.get(r.Owner)
	if c != nil && c.name != r.Name {
		return driver.Grant{}, fmt.Errorf("%w: owner %s has %s already", driver.ErrInvalid, r.Owner, driver.Quote(c.name))
	}
	l, err := b.leaseFor(ctx, c, r)
	if err != nil {
		if c == nil {
			err = driver.Unsent(err) // a lease has no keys yet
		}
		return driver.Grant{}, err
	}
	c = b.owners.get(r.Owner) // which may have ended with its lease
	switch {
	case c != nil && c.created > 0:
		return b.reacquire(ctx, start, c, l, r)
	case r.Queue:
		return b.enqueue(ctx, start, l, r)
	}
	grants, err := b.together(ctx, start, []*bid{{r: r, l: l}})
	if err != nil {
		return driver.Grant{}, err
	}
	return grants[0], nil
}

// leaseFor is the lease for a request of an Owner that may have a claim.
func (b *Backend) leaseFor(ctx context.Context, c *ownerState, r *driver.Request) (*lease, error) {
	var had *lease
	if c != nil {
		var err error
		if had, err = b.leaseOf(ctx, c); err != nil {
			return nil, err
		}
	}
	return b.leaseAfter(ctx, had, r)
}

// leaseOf is the lease that a claim's key is attached to: the servers are asked if that is
// in doubt. nil: the key is gone.
func (b *Backend) leaseOf(ctx context.Context, c *ownerState) (*lease, error) {
	if c.lease != nil && (c.modified > 0 || c.created == 0) {
		return c.lease, nil
	}
	resp, err := b.client.Get(ctx, c.key)
	if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != c.created {
		return nil, err
	}
	b.owners.update(c, func() { c.modified = resp.Kvs[0].ModRevision })
	return b.leases.byID(clientv3.LeaseID(resp.Kvs[0].Lease)), nil
}

// leaseAfter is the lease for a request whose Owner may have a key with another one. It
// keeps that if it lives for long enough: an attempt shortens no hold, and one after one
// without an answer goes on with the same key. The lease of a fixed hold is its own, and
// fresh.
func (b *Backend) leaseAfter(ctx context.Context, had *lease, r *driver.Request) (*lease, error) {
	ttl := r.TTL
	if had != nil {
		ask := b.leases.refresh
		if had.fixed {
			ask = b.leases.keepAlive
		}
		switch err := ask(ctx, had); {
		case errors.Is(err, rpctypes.ErrLeaseNotFound): // and the key with it
		case err != nil:
			return nil, err
		case had.granted() >= r.TTL && (had.fixed || !r.Fixed):
			return had, nil
		default:
			ttl = max(ttl, had.granted())
		}
	}
	if r.Fixed {
		return b.leases.dedicated(ctx, ttl)
	}
	return b.leases.forTTL(ctx, ttl)
}

// folderEmpty: nothing lies in the folder.
func folderEmpty(folder string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(folder).WithRange(folderEnd(folder)), "=", 0)
}

// folderUnchanged: nothing was written in the folder after a revision.
func folderUnchanged(folder string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(folder).WithRange(folderEnd(folder)), "<", revision+1)
}

// createdAt: the key is the one that was created then.
func createdAt(key string, create int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", create)
}

// modifiedAt: nothing was written to the key after that revision. Whatever is written on
// this condition is not done late, after something else was.
func modifiedAt(key string, mod int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", mod)
}

func getFolder(folder string) clientv3.Op {
	return clientv3.OpGet(folder, clientv3.WithRange(folderEnd(folder)))
}

func putKey(key string, l *lease, r *driver.Request, later bool) clientv3.Op {
	return clientv3.OpPut(key, encodeValue(r, later), clientv3.WithLease(l.id))
}

// putNewKey puts a key in line that is not there yet. Done late it changes nothing: by then
// its Owner has it, perhaps with a lease that lives longer.
func putNewKey(key string, l *lease, r *driver.Request) clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{createdAt(key, 0)}, []clientv3.Op{putKey(key, l, r, true)}, nil)
}

// enqueue makes a key for an Owner that has none, or may have this one, at the end of the
// line. If nothing is ahead of it, it is a hold.
func (b *Backend) enqueue(ctx context.Context, start time.Time, l *lease, r *driver.Request) (driver.Grant, error) {
	c, err := b.openOwner(r, l)
	if err != nil {
		return driver.Grant{}, err
	}
	folder := b.folder(r.Name)
	resp, err := b.batcher.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{folderEmpty(folder)},
		[]clientv3.Op{putKey(c.key, l, r, false)},
		[]clientv3.Op{putNewKey(c.key, l, r), getFolder(folder)}))
	if err != nil {
		return driver.Grant{}, b.recordFailure(c, l, err)
	}
	if resp.Succeeded {
		b.recordCreated(c, resp.Header.Revision)
		return b.finishGrant(ctx, c, l, r, start, resp.Header, false)
	}
	all := parseQueue(folder, resp.Responses[1].GetResponseRange().Kvs)
	place := all.find(r.Owner)
	if place < 0 {
		return driver.Grant{}, fmt.Errorf("the servers answered without the key %s, which was just written", driver.Quote(c.key))
	}
	if own := &all[place]; own.key != c.key {
		return b.adopt(ctx, start, c, r, all[:place], own)
	}
	b.recordCreated(c, all[place].created)
	if !resp.Responses[0].GetResponseTxn().Succeeded {
		b.recordFound(c, &all[place])
		return driver.Grant{}, errLeaseEnded
	}
	ahead := all[:place]
	if checkHolders(ahead, r) != nil {
		return driver.Grant{}, b.removeRefused(ctx, c, r)
	}
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		b.owners.setBlocker(c, ahead, by)
		return driver.Grant{}, all.heldError()
	}
	return b.finishGrant(ctx, c, l, r, start, resp.Header, false)
}

// recordCreated notes the revision that has created the key.
func (b *Backend) recordCreated(c *ownerState, revision int64) {
	b.owners.update(c, func() { c.created, c.modified, c.unknown = revision, revision, false })
}

// recordFound notes what an earlier attempt without an answer has written.
func (b *Backend) recordFound(c *ownerState, own *lockKey) {
	b.owners.update(c, func() {
		c.created, c.modified, c.mode, c.limit = own.created, own.modified, own.mode, own.Limit
		if own.lease != c.lease.id {
			c.lease = nil
		}
	})
}

// recordFailure notes what a write without an answer may have left behind.
func (b *Backend) recordFailure(c *ownerState, l *lease, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.owners.forget(c)
		b.leases.markEnded(l)
		return errLeaseEnded
	}
	if outcomeUnknown(err) {
		b.owners.update(c, func() { c.unknown, c.lateWrite = true, true })
	} else if !c.unknown {
		b.owners.forget(c)
	}
	return err
}

// removeRefused deletes the key of a request that can't go with who holds. If that one has
// gone meanwhile, it may have been an attempt as mistaken as this one.
func (b *Backend) removeRefused(ctx context.Context, c *ownerState, r *driver.Request) error {
	folder := b.folder(r.Name)
	resp, err := b.client.Txn(ctx).Then(clientv3.OpDelete(c.key), getFolder(folder)).Commit()
	if err != nil {
		return b.recordLateDelete(c, err)
	}
	b.owners.forget(c)
	all := parseQueue(folder, resp.Responses[1].GetResponseRange().Kvs)
	if err := checkHolders(all, r); err != nil {
		return err
	}
	return all.heldError()
}

// adopt makes an older key of the same Owner, which another connection has made, the one
// of this claim.
func (b *Backend) adopt(ctx context.Context, start time.Time, c *ownerState, r *driver.Request, ahead lockQueue, own *lockKey) (driver.Grant, error) {
	if err := checkConversion(own.mode, own.Limit, r); err != nil {
		return driver.Grant{}, errors.Join(err, b.discard(ctx, c))
	}
	l, err := b.leaseAfter(ctx, b.leases.byID(own.lease), r)
	if err != nil {
		return driver.Grant{}, err
	}
	by := blocker(ahead, r.Mode, r.Limit)
	resp, err := b.client.Txn(ctx).If(modifiedAt(own.key, own.modified)).
		Then(putKey(own.key, l, r, by != nil), clientv3.OpDelete(c.key)).
		Else(clientv3.OpDelete(c.key)).Commit()
	if err != nil {
		return driver.Grant{}, b.recordLateDelete(c, err)
	}
	if !resp.Succeeded {
		b.owners.forget(c)
		return driver.Grant{}, errLeaseEnded
	}
	b.owners.update(c, func() {
		b.owners.setKey(c, own.key)
		c.created, c.unknown = own.created, false
	})
	b.owners.leaseChanged(c, l, resp.Header.Revision)
	if by != nil {
		b.owners.setBlocker(c, ahead, by)
		return driver.Grant{}, append(ahead, *own).heldError()
	}
	return b.finishGrant(ctx, c, l, r, start, resp.Header, false)
}

// discard deletes a key that an attempt has made for nothing.
func (b *Backend) discard(ctx context.Context, c *ownerState) error {
	_, err := b.client.Delete(ctx, c.key)
	if err != nil {
		return b.recordLateDelete(c, err)
	}
	b.owners.forget(c)
	return nil
}

// recordLateDelete notes that a deletion without an answer may come to the key late, whoever has it
// then.
func (b *Backend) recordLateDelete(c *ownerState, err error) error {
	b.owners.update(c, func() { c.lateWrite = c.lateWrite || outcomeUnknown(err) })
	return err
}

// finishGrant makes the claim a hold, with the revision of the answer as its fence.
func (b *Backend) finishGrant(ctx context.Context, c *ownerState, l *lease, r *driver.Request, start time.Time, answer *pb.ResponseHeader, queued bool) (driver.Grant, error) {
	switch err := b.leases.ensureTerm(ctx, l, answer.RaftTerm); {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return driver.Grant{}, errLeaseEnded
	case err != nil:
		return driver.Grant{}, err
	}
	fence := uint64(answer.Revision)
	gone := false
	b.owners.update(c, func() {
		c.fence, c.mode, c.limit, c.onLost = fence, r.Mode, r.Limit, r.OnLost
		c.position, c.keysAhead, c.blocker, c.blockedWhile = 0, nil, "", nil
		gone = c.ended
	})
	if gone { // by word of another call, before there was anybody to be told
		return driver.Grant{}, errLeaseEnded
	}
	b.delayed.add(c)
	return driver.Grant{Fence: fence, Fences: 1, Queued: queued, TTL: l.expiry().Sub(start)}, nil
}
