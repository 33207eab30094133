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

// errLeaseGone ends an attempt whose lease turned out to have ended, or whose key has: it
// begins anew, and nothing was taken.
var errLeaseGone = errors.New("the lease has ended")

// maxAnew bounds how often an attempt begins anew.
const maxAnew = 4

// Acquire makes one attempt: in one round trip, if the shared lease is fresh enough.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, err := b.begin(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := valid(&r); err != nil {
		return driver.Grant{}, err
	}
	err = errLeaseGone
	var g driver.Grant
	for i := 0; i < maxAnew && errors.Is(err, errLeaseGone); i++ {
		g, err = b.attempt(ctx, &r)
	}
	if err == nil || errors.Is(err, driver.ErrHeld) {
		return g, err
	}
	return driver.Grant{}, b.fail("acquire", r.Name, err)
}

func (b *Backend) attempt(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	start := time.Now()
	c := b.claims.get(r.Owner)
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
	c = b.claims.get(r.Owner) // which may have ended with its lease
	switch {
	case c != nil && c.create > 0:
		return b.again(ctx, start, c, l, r)
	case r.Queue:
		return b.enter(ctx, start, l, r)
	}
	grants, err := b.together(ctx, start, []*bid{{r: r, l: l}})
	if err != nil {
		return driver.Grant{}, err
	}
	return grants[0], nil
}

// leaseFor is the lease for a request of an Owner that may have a claim.
func (b *Backend) leaseFor(ctx context.Context, c *claim, r *driver.Request) (*lease, error) {
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
func (b *Backend) leaseOf(ctx context.Context, c *claim) (*lease, error) {
	if c.lease != nil && (c.mod > 0 || c.create == 0) {
		return c.lease, nil
	}
	resp, err := b.client.Get(ctx, c.key)
	if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != c.create {
		return nil, err
	}
	b.claims.change(c, func() { c.mod = resp.Kvs[0].ModRevision })
	return b.leases.named(clientv3.LeaseID(resp.Kvs[0].Lease)), nil
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
			ask = b.leases.prolong
		}
		switch err := ask(ctx, had); {
		case errors.Is(err, rpctypes.ErrLeaseNotFound): // and the key with it
		case err != nil:
			return nil, err
		case had.life() >= r.TTL && (had.fixed || !r.Fixed):
			return had, nil
		default:
			ttl = max(ttl, had.life())
		}
	}
	if r.Fixed {
		return b.leases.own(ctx, ttl)
	}
	return b.leases.forTTL(ctx, ttl)
}

// vacant: nothing lies in the folder.
func vacant(folder string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(folder).WithRange(end(folder)), "=", 0)
}

// since: nothing was written in the folder after a revision.
func since(folder string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(folder).WithRange(end(folder)), "<", revision+1)
}

// still: the key is the one that was created then.
func still(key string, create int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", create)
}

// unchanged: nothing was written to the key after that revision. Whatever is written on
// this condition is not done late, after something else was.
func unchanged(key string, mod int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", mod)
}

func list(folder string) clientv3.Op { return clientv3.OpGet(folder, clientv3.WithRange(end(folder))) }

func put(key string, l *lease, r *driver.Request, later bool) clientv3.Op {
	return clientv3.OpPut(key, noteOf(r, later), clientv3.WithLease(l.id))
}

// putNew puts a key in line that is not there yet. Done late it changes nothing: by then
// its Owner has it, perhaps with a lease that lives longer.
func putNew(key string, l *lease, r *driver.Request) clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{still(key, 0)}, []clientv3.Op{put(key, l, r, true)}, nil)
}

// enter makes a key for an Owner that has none, or may have this one, at the end of the
// line. If nothing is ahead of it, it is a hold.
func (b *Backend) enter(ctx context.Context, start time.Time, l *lease, r *driver.Request) (driver.Grant, error) {
	c, err := b.open(r, l)
	if err != nil {
		return driver.Grant{}, err
	}
	folder := b.folder(r.Name)
	resp, err := b.ferry.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{vacant(folder)},
		[]clientv3.Op{put(c.key, l, r, false)},
		[]clientv3.Op{putNew(c.key, l, r), list(folder)}))
	if err != nil {
		return driver.Grant{}, b.failed(c, l, err)
	}
	if resp.Succeeded {
		b.created(c, resp.Header.Revision)
		return b.grant(ctx, c, l, r, start, resp.Header, false)
	}
	all := readRow(folder, resp.Responses[1].GetResponseRange().Kvs)
	place := all.find(r.Owner)
	if place < 0 {
		return driver.Grant{}, fmt.Errorf("the servers answered without the key %s, which was just written", driver.Quote(c.key))
	}
	if own := &all[place]; own.key != c.key {
		return b.adopt(ctx, start, c, r, all[:place], own)
	}
	b.created(c, all[place].create)
	if !resp.Responses[0].GetResponseTxn().Succeeded {
		b.found(c, &all[place])
		return driver.Grant{}, errLeaseGone
	}
	ahead := all[:place]
	if mismatch(ahead, r) != nil {
		return driver.Grant{}, b.withdraw(ctx, c, r)
	}
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		b.claims.refused(c, ahead, by)
		return driver.Grant{}, all.held()
	}
	return b.grant(ctx, c, l, r, start, resp.Header, false)
}

// created notes the revision that has created the key.
func (b *Backend) created(c *claim, revision int64) {
	b.claims.change(c, func() { c.create, c.mod, c.unsure = revision, revision, false })
}

// found notes what an earlier attempt without an answer has written.
func (b *Backend) found(c *claim, own *entry) {
	b.claims.change(c, func() {
		c.create, c.mod, c.mode, c.limit = own.create, own.mod, own.mode, own.Limit
		if own.lease != c.lease.id {
			c.lease = nil
		}
	})
}

// failed notes what a write without an answer may have left behind.
func (b *Backend) failed(c *claim, l *lease, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.claims.drop(c)
		b.leases.lost(l)
		return errLeaseGone
	}
	if unsure(err) {
		b.claims.change(c, func() { c.unsure, c.stray = true, true })
	} else if !c.unsure {
		b.claims.drop(c)
	}
	return err
}

// withdraw deletes the key of a request that can't go with who holds. If that one has
// gone meanwhile, it may have been an attempt as mistaken as this one.
func (b *Backend) withdraw(ctx context.Context, c *claim, r *driver.Request) error {
	folder := b.folder(r.Name)
	resp, err := b.client.Txn(ctx).Then(clientv3.OpDelete(c.key), list(folder)).Commit()
	if err != nil {
		return b.astray(c, err)
	}
	b.claims.drop(c)
	all := readRow(folder, resp.Responses[1].GetResponseRange().Kvs)
	if err := mismatch(all, r); err != nil {
		return err
	}
	return all.held()
}

// adopt makes an older key of the same Owner, which another connection has made, the one
// of this claim.
func (b *Backend) adopt(ctx context.Context, start time.Time, c *claim, r *driver.Request, ahead row, own *entry) (driver.Grant, error) {
	if err := becomes(own.mode, own.Limit, r); err != nil {
		return driver.Grant{}, errors.Join(err, b.discard(ctx, c))
	}
	l, err := b.leaseAfter(ctx, b.leases.named(own.lease), r)
	if err != nil {
		return driver.Grant{}, err
	}
	by := blocker(ahead, r.Mode, r.Limit)
	resp, err := b.client.Txn(ctx).If(unchanged(own.key, own.mod)).
		Then(put(own.key, l, r, by != nil), clientv3.OpDelete(c.key)).
		Else(clientv3.OpDelete(c.key)).Commit()
	if err != nil {
		return driver.Grant{}, b.astray(c, err)
	}
	if !resp.Succeeded {
		b.claims.drop(c)
		return driver.Grant{}, errLeaseGone
	}
	b.claims.change(c, func() {
		b.claims.rekey(c, own.key)
		c.create, c.unsure = own.create, false
	})
	b.claims.moved(c, l, resp.Header.Revision)
	if by != nil {
		b.claims.refused(c, ahead, by)
		return driver.Grant{}, append(ahead, *own).held()
	}
	return b.grant(ctx, c, l, r, start, resp.Header, false)
}

// discard deletes a key that an attempt has made for nothing.
func (b *Backend) discard(ctx context.Context, c *claim) error {
	_, err := b.client.Delete(ctx, c.key)
	if err != nil {
		return b.astray(c, err)
	}
	b.claims.drop(c)
	return nil
}

// astray notes that a deletion without an answer may come to the key late, whoever has it
// then.
func (b *Backend) astray(c *claim, err error) error {
	b.claims.change(c, func() { c.stray = c.stray || unsure(err) })
	return err
}

// grant makes the claim a hold, with the revision of the answer as its fence.
func (b *Backend) grant(ctx context.Context, c *claim, l *lease, r *driver.Request, start time.Time, answer *pb.ResponseHeader, queued bool) (driver.Grant, error) {
	switch err := b.leases.prove(ctx, l, answer.RaftTerm); {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return driver.Grant{}, errLeaseGone
	case err != nil:
		return driver.Grant{}, err
	}
	fence := uint64(answer.Revision)
	gone := false
	b.claims.change(c, func() {
		c.fence, c.mode, c.limit, c.onLost = fence, r.Mode, r.Limit, r.OnLost
		c.line, c.ahead, c.block, c.same = 0, nil, "", nil
		gone = c.gone
	})
	if gone { // by word of another call, before there was anybody to be told
		return driver.Grant{}, errLeaseGone
	}
	b.young.add(c)
	return driver.Grant{Fence: fence, Fences: 1, Queued: queued, TTL: l.until().Sub(start)}, nil
}
