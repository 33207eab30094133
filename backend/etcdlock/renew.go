package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
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
		invalid := validTTL(holds[i].TTL)
		switch {
		case invalid != nil:
			r.errs[i] = b.fail("renew", holds[i].Name, invalid)
		case c == nil || c.name != holds[i].Name || c.create == 0:
			r.do(func() { r.errs[i] = r.other(&holds[i]) })
		case c.fence == 0:
			r.errs[i] = lost(holds[i].Name)
		case c.lease == nil || c.lease.life() < holds[i].TTL || holds[i].Shorten:
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
	ask := func(ctx context.Context, kv clientv3.KV) (*clientv3.TxnResponse, error) {
		return kv.Txn(ctx).If(are...).Else(looks...).Commit()
	}
	resp, err := insist(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) { return ask(ctx, b.client) },
		onNew(b.client, func(ctx context.Context, on *grpc.ClientConn) (*clientv3.TxnResponse, error) {
			return ask(ctx, clientv3.NewKVFromKVClient(pb.NewKVClient(on), b.client))
		}))
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
	from, err := r.b.leaseOf(r.ctx, c)
	if err == nil && from == nil {
		err = driver.ErrLost
	}
	if err != nil {
		return r.moveAnswer(h, c, err)
	}
	l, err := r.leaseFor(h, from, c.fixed)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	r.b.claims.moving(c, l)
	answer, err := r.attach(c.key, c.create, c.mod, l)
	if err != nil {
		return r.moveAnswer(h, c, err)
	}
	r.b.claims.moved(c, l, answer.Revision)
	return r.moveAnswer(h, c, r.b.leases.prove(r.ctx, l, answer.RaftTerm))
}

// moveAnswer is what the outcome of a move means for a hold.
func (r *renewal) moveAnswer(h *driver.Hold, c *claim, err error) error {
	switch {
	case errors.Is(err, driver.ErrLost):
		r.b.claims.drop(c)
	case errors.Is(err, errMoved):
		r.b.claims.change(c, func() { c.mod = 0 })
	}
	return r.answer(h, err, driver.ErrLost)
}

// leaseFor is a lease that lives for at least the hold's TTL from the start of the renewal:
// the one that the key has, if it does.
func (r *renewal) leaseFor(h *driver.Hold, from *lease, fixed bool) (*lease, error) {
	if h.Shorten {
		return r.b.leases.own(r.ctx, h.TTL)
	}
	err := r.b.leases.prolong(r.ctx, from)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && from.life() >= h.TTL {
		return from, err
	}
	if fixed {
		return r.b.leases.own(r.ctx, h.TTL)
	}
	l, err := r.b.leases.forTTL(r.ctx, h.TTL)
	if err == nil && l.until().Before(r.start.Add(h.TTL)) {
		err = r.b.leases.prolong(r.ctx, l)
	}
	return l, err
}

var errMoved = errors.New("the key was attached to another lease meanwhile")

// attach moves a key to a lease, unless something was written to it meanwhile: so an earlier
// attempt that had no answer can't undo that later on. ErrLost: the key is not there.
func (r *renewal) attach(key string, create, mod int64, l *lease) (*pb.ResponseHeader, error) {
	resp, err := r.b.client.Txn(r.ctx).If(unchanged(key, mod)).
		Then(clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		err = driver.ErrLost
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].CreateRevision == create {
			err = errMoved
		}
	}
	return resp.Header, err
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
	own := &all[place]
	theirs := r.b.leases.named(own.lease)
	l, err := r.leaseFor(h, theirs, true)
	if err != nil {
		return r.answer(h, err, rpctypes.ErrLeaseNotFound)
	}
	if l != theirs {
		_, err = r.attach(own.key, own.create, own.mod, l)
		return r.answer(h, err, driver.ErrLost)
	}
	return r.answer(h, r.b.leases.prove(r.ctx, l, term), rpctypes.ErrLeaseNotFound)
}
