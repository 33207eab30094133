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

// maxOps is how many operations etcd takes in one transaction if it is not told otherwise.
const maxOps = 128

// bid is one lock's part in a transaction that takes all or nothing and leaves nothing
// behind.
type bid struct {
	r     *driver.Request
	l     *lease
	c     *claim
	known bool         // the Owner had a key before
	cmp   clientv3.Cmp // what must be as it was seen
}

// together writes the keys of all bids in a transaction that does nothing if anybody else
// was quicker, which tells who. Nobody who is in line is passed, and none of these keys
// is ever in somebody's way without being a hold.
//
// It expects at first that nobody has a key. Where some may have one, as readers beside
// each other, it looks and goes on if nothing was written since.
func (b *Backend) together(ctx context.Context, start time.Time, bids []*bid) ([]driver.Grant, error) {
	if err := b.openBids(bids); err != nil {
		return nil, err
	}
	for {
		resp, err := b.commit(ctx, bids)
		if err != nil {
			return nil, b.failedBids(ctx, bids, err)
		}
		if resp.Succeeded {
			return b.grantBids(ctx, bids, start, resp.Header)
		}
		if err := b.review(ctx, bids, resp); err != nil {
			b.dropBids(bids)
			return nil, err
		}
	}
}

func (b *Backend) openBids(bids []*bid) error {
	for _, x := range bids {
		old := b.claims.get(x.r.Owner)
		if old != nil && old.name != x.r.Name {
			return fmt.Errorf("%w: owner %s has %s already", driver.ErrInvalid, x.r.Owner, driver.Quote(old.name))
		}
		if x.known = old != nil; x.known && old.create > 0 {
			if err := becomes(old.mode, old.limit, x.r); err != nil {
				return err
			}
		}
	}
	for _, x := range bids {
		x.cmp = vacant(b.folder(x.r.Name))
		x.c = b.claims.get(x.r.Owner)
		if x.c == nil || x.c.create == 0 {
			c, err := b.open(x.r, x.l)
			if err != nil {
				return err
			}
			x.c = c
		}
	}
	return nil
}

func (b *Backend) commit(ctx context.Context, bids []*bid) (*clientv3.TxnResponse, error) {
	var cmps []clientv3.Cmp
	var puts, lists []clientv3.Op
	for _, x := range bids {
		cmps = append(cmps, x.cmp)
		puts = append(puts, put(x.c.key, x.l, x.r, false))
		lists = append(lists, list(b.folder(x.r.Name)))
		b.claims.moving(x.c, x.l)
	}
	if len(bids) == 1 {
		return b.ferry.commit(ctx, b.folder(bids[0].r.Name), clientv3.OpTxn(cmps, puts, lists))
	}
	return b.client.Txn(ctx).If(cmps...).Then(puts...).Else(lists...).Commit()
}

// review looks at what the servers have, and decides for each bid on what condition it is
// made again.
func (b *Backend) review(ctx context.Context, bids []*bid, resp *clientv3.TxnResponse) error {
	for i, x := range bids {
		kvs := (*pb.RangeResponse)(resp.Responses[i].GetResponseRange()).Kvs
		if err := b.reviewBid(ctx, x, readRow(b.folder(x.r.Name), kvs), resp.Header.Revision); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) reviewBid(ctx context.Context, x *bid, all row, revision int64) error {
	place := all.find(x.r.Owner)
	if place < 0 {
		x.cmp = since(b.folder(x.r.Name), revision)
		if x.known && x.c.create > 0 { // its key is gone
			x.known = false
			if _, err := b.open(x.r, x.l); err != nil {
				return err
			}
		}
		place = len(all)
	} else {
		own := &all[place]
		if err := becomes(own.mode, own.Limit, x.r); err != nil {
			return err
		}
		l, err := b.leaseAfter(ctx, b.leases.named(own.lease), x.r)
		if err != nil {
			return err
		}
		x.known, x.l, x.cmp = true, l, unchanged(own.key, own.mod)
		b.claims.change(x.c, func() {
			b.claims.rekey(x.c, own.key)
			x.c.create = own.create
		})
	}
	ahead := all[:place]
	if err := mismatch(ahead, x.r); err != nil {
		return err
	}
	if by := blocker(ahead, x.r.Mode, x.r.Limit); by != nil {
		return all.held()
	}
	return nil
}

func (b *Backend) grantBids(ctx context.Context, bids []*bid, start time.Time, answer *pb.ResponseHeader) ([]driver.Grant, error) {
	grants := make([]driver.Grant, len(bids))
	for _, x := range bids {
		b.claims.change(x.c, func() {
			x.c.unsure = false
			if x.c.create == 0 {
				x.c.create = answer.Revision
			}
		})
		b.claims.moved(x.c, x.l, answer.Revision)
	}
	for i, x := range bids {
		var err error
		if grants[i], err = b.grant(ctx, x.c, x.l, x.r, start, answer, x.known); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// dropBids forgets what was not written.
func (b *Backend) dropBids(bids []*bid) {
	for _, x := range bids {
		if x.known || x.c.unsure {
			continue
		}
		if x.l.fixed && x.l == x.c.lease && !x.c.stray {
			b.claims.change(x.c, func() { x.c.lease = nil })
			b.leases.unused(x.l)
		}
		b.claims.drop(x.c)
	}
}

func (b *Backend) failedBids(ctx context.Context, bids []*bid, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.dropBids(bids)
		for _, x := range bids {
			if err := b.leases.prolong(ctx, x.l); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return err
			}
		}
		return errLeaseGone
	}
	if !unsure(err) {
		b.dropBids(bids)
		return err
	}
	for _, x := range bids {
		b.claims.change(x.c, func() {
			x.c.unsure = x.c.unsure || x.c.create == 0
			x.c.stray = x.c.stray || x.c.unsure
		})
	}
	return err
}
