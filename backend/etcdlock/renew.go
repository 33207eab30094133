package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxAtOnce bounds the requests that one Renew has under way.
const maxAtOnce = 8

// renewal is a Renew: the answers, and what is to be asked for them.
type renewal struct {
	b     *Backend
	ctx   context.Context
	start time.Time
	holds []driver.Hold
	errs  []error
	slots chan struct{}
	wg    sync.WaitGroup
}

// part is a hold of a renewal that this backend has made.
type part struct {
	i int
	c *claim
}

// Renew keeps the leases of the holds alive and looks whether their keys are there: a
// request for each lease, and one for each 128 holds, side by side.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	r := &renewal{b: b, start: time.Now(), holds: holds, errs: make([]error, len(holds)), slots: make(chan struct{}, maxAtOnce)}
	var err error
	if r.ctx, err = b.begin(ctx); err != nil {
		r.all(err)
		return r.errs
	}
	byLease := map[*lease][]part{}
	for i := range holds {
		c := b.claims.get(holds[i].Owner)
		switch {
		case c == nil || c.name != holds[i].Name || c.create == 0:
			r.do(func() { r.errs[i] = r.other(&holds[i]) })
		case c.fence == 0:
			r.errs[i] = lost(holds[i].Name)
		case c.lease == nil || c.lease.life() < holds[i].TTL:
			r.do(func() { r.errs[i] = r.move(&holds[i], c) })
		default:
			byLease[c.lease] = append(byLease[c.lease], part{i, c})
		}
	}
	for l, parts := range byLease {
		r.lease(l, parts)
	}
	r.wg.Wait()
	return r.errs
}

func (r *renewal) all(err error) {
	for i := range r.errs {
		r.errs[i] = err
	}
}

// do runs f beside others.
func (r *renewal) do(f func()) {
	r.wg.Go(func() {
		r.slots <- struct{}{}
		defer func() { <-r.slots }()
		f()
	})
}

// lease renews the holds of one lease.
func (r *renewal) lease(l *lease, parts []part) {
	var kept error
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		kept = r.b.leases.prolong(r.ctx, l)
	})
	for len(parts) > 0 {
		n := min(len(parts), maxOps)
		some := parts[:n]
		parts = parts[n:]
		r.do(func() {
			term := r.check(some)
			<-done
			kept := kept
			if kept == nil && l.under() < term {
				kept = errOldLeader
			}
			for _, p := range some {
				if r.errs[p.i] == nil && kept != nil {
					r.errs[p.i] = r.answer(&r.holds[p.i], kept, rpctypes.ErrLeaseNotFound)
				}
			}
		})
	}
}

// answer is what an error means for a hold, of which one may say that it is gone.
func (r *renewal) answer(h *driver.Hold, err, gone error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gone):
		return lost(h.Name)
	}
	return r.b.fail("renew", h.Name, err)
}

// check looks whether keys are the ones that were granted, and answers the leader's term.
func (r *renewal) check(parts []part) uint64 {
	claims := make([]*claim, len(parts))
	for i, p := range parts {
		claims[i] = p.c
	}
	gone, term, err := r.b.missing(r.ctx, claims)
	for i, p := range parts {
		switch {
		case err != nil:
			r.errs[p.i] = r.b.fail("renew", p.c.name, err)
		case gone[i]:
			r.b.claims.drop(p.c)
			r.errs[p.i] = lost(p.c.name)
		}
	}
	return term
}

// missing tells which claims' keys are not there any more, and the leader's term.
func (b *Backend) missing(ctx context.Context, claims []*claim) (gone []bool, term uint64, err error) {
	var are []clientv3.Cmp
	var looks []clientv3.Op
	for _, c := range claims {
		are = append(are, still(c.key, c.create))
		looks = append(looks, clientv3.OpGet(c.key, clientv3.WithKeysOnly()))
	}
	resp, err := insist(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return b.client.Txn(ctx).If(are...).Else(looks...).Commit()
	})
	if errors.Is(err, rpctypes.ErrTooManyOps) && len(claims) > 1 {
		first, term, err := b.missing(ctx, claims[:len(claims)/2])
		second, term2, err2 := b.missing(ctx, claims[len(claims)/2:])
		return append(first, second...), max(term, term2), errors.Join(err, err2)
	}
	if err != nil {
		return nil, 0, err
	}
	gone = make([]bool, len(claims))
	for i, c := range claims {
		if !resp.Succeeded {
			kvs := resp.Responses[i].GetResponseRange().Kvs
			gone[i] = len(kvs) == 0 || kvs[0].CreateRevision != c.create
		}
	}
	return gone, resp.Header.RaftTerm, nil
}

// move attaches a hold's key to a lease that lives long enough.
func (r *renewal) move(h *driver.Hold, c *claim) error {
	from, err := r.leaseOf(c)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	l, err := r.leaseFor(h.TTL, c.fixed)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	r.b.claims.moving(c, l)
	term, err := r.attach(c.key, c.create, from, l)
	if err == nil {
		err = r.b.leases.prove(r.ctx, l, term)
	}
	switch {
	case err == nil:
		r.b.claims.moved(c, l)
	case errors.Is(err, driver.ErrLost):
		r.b.claims.drop(c)
	}
	return r.answer(h, err, driver.ErrLost)
}

// leaseOf is the lease that a claim's key is attached to: the servers are asked if that is
// in doubt.
func (r *renewal) leaseOf(c *claim) (clientv3.LeaseID, error) {
	if c.lease != nil {
		return c.lease.id, nil
	}
	resp, err := r.b.client.Get(r.ctx, c.key)
	switch {
	case err != nil:
		return 0, err
	case len(resp.Kvs) == 0:
		return 0, nil // which attach will find
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease), nil
}

// leaseFor is a lease that lives for at least ttl from the start of the renewal.
func (r *renewal) leaseFor(ttl time.Duration, fixed bool) (*lease, error) {
	if fixed {
		return r.b.leases.own(r.ctx, ttl)
	}
	l, err := r.b.leases.forTTL(r.ctx, ttl)
	if err == nil && l.until().Before(r.start.Add(ttl)) {
		err = r.b.leases.prolong(r.ctx, l)
	}
	return l, err
}

var errMoved = errors.New("the key was attached to another lease meanwhile")

// attach moves a key from one lease to another, and answers the leader's term. An earlier
// attempt that had no answer can't undo that later on: it takes the key from another lease.
// ErrLost: the key is not there.
func (r *renewal) attach(key string, create int64, from clientv3.LeaseID, l *lease) (term uint64, err error) {
	resp, err := r.b.client.Txn(r.ctx).
		If(still(key, create), clientv3.Compare(clientv3.LeaseValue(key), "=", from)).
		Then(clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return 0, err
	}
	if !resp.Succeeded {
		err = driver.ErrLost
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].CreateRevision == create {
			err = errMoved
		}
	}
	return resp.Header.RaftTerm, err
}

// other renews a hold that another connection has made: the lease is kept alive as it is.
func (r *renewal) other(h *driver.Hold) error {
	all, term, err := r.b.rowUnder(r.ctx, h.Name)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	place := all.find(h.Owner)
	if place < 0 || place >= all.holding() || all[place].foreign {
		return lost(h.Name)
	}
	theirs := &lease{id: all[place].lease}
	err = r.b.leases.prolong(r.ctx, theirs)
	if err == nil {
		err = r.b.leases.prove(r.ctx, theirs, term)
	}
	if err != nil || theirs.life() >= h.TTL {
		return r.answer(h, err, rpctypes.ErrLeaseNotFound)
	}
	l, err := r.leaseFor(h.TTL, true)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	_, err = r.attach(all[place].key, all[place].create, all[place].lease, l)
	return r.answer(h, err, driver.ErrLost)
}
