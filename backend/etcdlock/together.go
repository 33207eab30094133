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
	c     *ownerState
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
		old := b.owners.get(x.r.Owner)
		if old != nil && old.name != x.r.Name {
			return fmt.Errorf("%w: owner %s has %s already", driver.ErrInvalid, x.r.Owner, driver.Quote(old.name))
		}
		if x.known = old != nil; x.known && old.created > 0 {
			if err := checkConversion(old.mode, old.limit, x.r); err != nil {
				return err
			}
		}
	}
	for _, x := range bids {
		x.cmp = folderEmpty(b.folder(x.r.Name))
		x.c = b.owners.get(x.r.Owner)
		if x.c == nil || x.c.created == 0 {
			c, err := b.openOwner(x.r, x.l)
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
		puts = append(puts, putKey(x.c.key, x.l, x.r, false))
		lists = append(lists, getFolder(b.folder(x.r.Name)))
		b.owners.leaseChanging(x.c, x.l)
	}
	if len(bids) == 1 {
		return b.batcher.commit(ctx, b.folder(bids[0].r.Name), clientv3.OpTxn(cmps, puts, lists))
	}
	return b.client.Txn(ctx).If(cmps...).Then(puts...).Else(lists...).Commit()
}

// review looks at what the servers have, and decides for each bid on what condition it is
// made again.
func (b *Backend) review(ctx context.Context, bids []*bid, resp *clientv3.TxnResponse) error {
	for i, x := range bids {
		kvs := (*pb.RangeResponse)(resp.Responses[i].GetResponseRange()).Kvs
		if err := b.reviewBid(ctx, x, parseQueue(b.folder(x.r.Name), kvs), resp.Header.Revision); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) reviewBid(ctx context.Context, x *bid, all lockQueue, revision int64) error {
	place := all.find(x.r.Owner)
	if place < 0 {
		x.cmp = folderUnchanged(b.folder(x.r.Name), revision)
		if x.known && x.c.created > 0 { // its key is gone
			x.known = false
			if _, err := b.openOwner(x.r, x.l); err != nil {
				return err
			}
		}
		place = len(all)
	} else {
		own := &all[place]
		if err := checkConversion(own.mode, own.Limit, x.r); err != nil {
			return err
		}
		l, err := b.leaseAfter(ctx, b.leases.byID(own.lease), x.r)
		if err != nil {
			return err
		}
		x.known, x.l, x.cmp = true, l, modifiedAt(own.key, own.modified)
		b.owners.update(x.c, func() {
			b.owners.setKey(x.c, own.key)
			x.c.created = own.created
		})
	}
	ahead := all[:place]
	if err := checkHolders(ahead, x.r); err != nil {
		return err
	}
	if by := blocker(ahead, x.r.Mode, x.r.Limit); by != nil {
		return all.heldError()
	}
	return nil
}

func (b *Backend) grantBids(ctx context.Context, bids []*bid, start time.Time, answer *pb.ResponseHeader) ([]driver.Grant, error) {
	grants := make([]driver.Grant, len(bids))
	for _, x := range bids {
		b.owners.update(x.c, func() {
			x.c.unknown = false
			if x.c.created == 0 {
				x.c.created = answer.Revision
			}
		})
		b.owners.leaseChanged(x.c, x.l, answer.Revision)
	}
	for i, x := range bids {
		var err error
		if grants[i], err = b.finishGrant(ctx, x.c, x.l, x.r, start, answer, x.known); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// dropBids forgets what was not written.
func (b *Backend) dropBids(bids []*bid) {
	for _, x := range bids {
		if x.known || x.c.unknown {
			continue
		}
		if x.l.fixed && x.l == x.c.lease && !x.c.lateWrite {
			b.owners.update(x.c, func() { x.c.lease = nil })
			b.leases.keepSpare(x.l)
		}
		b.owners.forget(x.c)
	}
}

func (b *Backend) failedBids(ctx context.Context, bids []*bid, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.dropBids(bids)
		for _, x := range bids {
			if err := b.leases.keepAlive(ctx, x.l); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return err
			}
		}
		return errLeaseEnded
	}
	if !outcomeUnknown(err) {
		b.dropBids(bids)
		return err
	}
	for _, x := range bids {
		b.owners.update(x.c, func() {
			x.c.unknown = x.c.unknown || x.c.created == 0
			x.c.lateWrite = x.c.lateWrite || x.c.unknown
		})
	}
	return err
}
