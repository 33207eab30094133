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

// again asks for an Owner that has a key. A place in line is looked at, and a hold is
// written again, for a greater fence.
func (b *Backend) again(ctx context.Context, start time.Time, c *claim, l *lease, r *driver.Request) (driver.Grant, error) {
	if err := becomes(c.mode, c.limit, r); err != nil {
		return driver.Grant{}, err
	}
	write := c.fence > 0 || l != c.lease || r.Mode != c.mode
	if c.line > shortLine && len(c.same) > 0 && !write {
		if err := b.glance(ctx, c); err != nil {
			return driver.Grant{}, err
		}
	}
	folder := b.folder(r.Name)
	look := []clientv3.Op{
		clientv3.OpGet(folder, clientv3.WithRange(end(folder)), clientv3.WithMaxCreateRev(c.create)),
		clientv3.OpGet(folder, clientv3.WithRange(end(folder)), clientv3.WithCountOnly()),
	}
	is := still(c.key, c.create)
	if write {
		is = unchanged(c.key, c.mod)
		b.claims.moving(c, l)
		look = append(look, put(c.key, l, r, c.fence == 0))
	}
	resp, err := b.ferry.commit(ctx, folder, clientv3.OpTxn(
		[]clientv3.Cmp{is}, look, []clientv3.Op{list(folder)}))
	if err != nil {
		return driver.Grant{}, b.refuses(l, err)
	}
	if !resp.Succeeded {
		return driver.Grant{}, b.changed(c, readRow(folder, resp.Responses[0].GetResponseRange().Kvs))
	}
	if write {
		b.claims.moved(c, l, resp.Header.Revision)
	}
	b.claims.change(c, func() { c.mode = r.Mode })
	kvs := resp.Responses[0].GetResponseRange().Kvs
	all := readRow(folder, kvs)
	ahead := all[:max(all.find(r.Owner), 0)]
	if by := blocker(ahead, r.Mode, r.Limit); by != nil {
		if err := mismatch(ahead, r); err != nil && c.fence == 0 {
			return driver.Grant{}, b.withdraw(ctx, c, r)
		}
		b.claims.refused(c, ahead, by)
		return driver.Grant{}, all.held()
	}
	queued := resp.Responses[1].GetResponseRange().Count > int64(len(kvs))
	if !write && r.Mode == driver.Counted {
		return b.confirm(ctx, start, c, l, r)
	}
	return b.grant(ctx, c, l, r, start, resp.Header, queued)
}

// shortLine is how many others a place in line may have before it if they are all to be
// read with each attempt.
const shortLine = 16

// glance refuses a place in a long line while what keeps it out is as it was: a thousand
// who wait would else read five hundred keys each. nil: it takes a closer look.
func (b *Backend) glance(ctx context.Context, c *claim) error {
	resp, err := b.client.Txn(ctx).If(append(c.same, still(c.key, c.create))...).Then(clientv3.OpGet(c.front.key)).Commit()
	if err != nil || !resp.Succeeded {
		return err
	}
	first := readRow(b.folder(c.name), resp.Responses[0].GetResponseRange().Kvs)
	if len(first) > 0 && first[0].create != c.front.create {
		first = nil // somebody else has that key by now
	}
	return first.held()
}

// keptOut is what has to change before a request can be let in: the key that blocks it
// goes, or, for readers, becomes one's; of a semaphore, one of the last permits before it.
// Where these are many, there is nothing to compare.
func keptOut(ahead row, by *entry, mode driver.Mode, limit int) []clientv3.Cmp {
	switch {
	case mode == driver.Read:
		return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(by.key), "=", by.mod)}
	case mode != driver.Counted || by.mode != driver.Counted || by.Limit != limit:
		return []clientv3.Cmp{still(by.key, by.create)}
	case limit > shortLine:
		return nil
	}
	var are []clientv3.Cmp
	for _, e := range ahead[len(ahead)-limit:] {
		are = append(are, still(e.key, e.create))
	}
	return are
}

// confirm writes the key of a permit that came out of the line: only a write has a
// revision that no other permit's answer has.
func (b *Backend) confirm(ctx context.Context, start time.Time, c *claim, l *lease, r *driver.Request) (driver.Grant, error) {
	folder := b.folder(r.Name)
	resp, err := b.client.Txn(ctx).If(unchanged(c.key, c.mod)).Then(put(c.key, l, r, false)).Else(list(folder)).Commit()
	if err != nil {
		return driver.Grant{}, b.refuses(l, err)
	}
	if !resp.Succeeded {
		return driver.Grant{}, b.changed(c, readRow(folder, resp.Responses[0].GetResponseRange().Kvs))
	}
	b.claims.moved(c, l, resp.Header.Revision)
	return b.grant(ctx, c, l, r, start, resp.Header, false)
}

// changed is for a key that is not as it was: it is gone, or an earlier attempt without an
// answer was done meanwhile, from which the next goes on.
func (b *Backend) changed(c *claim, all row) error {
	if i := all.find(c.owner); i >= 0 && all[i].key == c.key && all[i].create == c.create {
		b.claims.change(c, func() { c.lease, c.mod = nil, all[i].mod })
	} else {
		b.claims.drop(c)
	}
	return errLeaseGone
}

// refuses looks for the one refusal that an attempt can do something about.
func (b *Backend) refuses(l *lease, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		b.leases.lost(l)
		return errLeaseGone
	}
	return err
}
