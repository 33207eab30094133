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

// maxParallel bounds the requests that one Renew has under way.
const maxParallel = 8

// renewCall is a Renew: the answers, and what is to be asked for them.
type renewCall struct {
	b     *Backend
	ctx   context.Context
	start time.Time
	holds []driver.Hold
	errs  []error
	slots chan struct{}
	wg    sync.WaitGroup
}

// renewedHold is a hold of a renewal that this backend has made.
type renewedHold struct {
	i int
	c *ownerState
}

// Renew keeps the leases of the holds alive and looks whether their keys are there: a
// request for each lease, and one for each 128 holds, side by side.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	r := &renewCall{b: b, start: time.Now(), holds: holds, errs: make([]error, len(holds)), slots: make(chan struct{}, maxParallel)}
	var err error
	if r.ctx, err = b.prepare(ctx); err != nil {
		r.failAll(err)
		return r.errs
	}
	byLease := map[*lease][]renewedHold{}
	for i := range holds {
		c := b.owners.get(holds[i].Owner)
		invalid := validTTL(holds[i].TTL)
		switch {
		case invalid != nil:
			r.errs[i] = b.fail("renew", holds[i].Name, invalid)
		case c == nil || c.name != holds[i].Name || c.created == 0:
			r.run(func() { r.errs[i] = r.renewOther(&holds[i]) })
		case c.fence == 0:
			r.errs[i] = errLostHold(holds[i].Name)
		case c.lease == nil || c.lease.granted() < holds[i].TTL || holds[i].Shorten:
			r.run(func() { r.errs[i] = r.moveHold(&holds[i], c) })
		default:
			byLease[c.lease] = append(byLease[c.lease], renewedHold{i, c})
		}
	}
	for l, parts := range byLease {
		r.renewLease(l, parts)
	}
	r.wg.Wait()
	return r.errs
}

func (r *renewCall) failAll(err error) {
	for i := range r.errs {
		r.errs[i] = err
	}
}

// run runs f beside others.
func (r *renewCall) run(f func()) {
	r.wg.Go(func() {
		r.slots <- struct{}{}
		defer func() { <-r.slots }()
		f()
	})
}

// renewLease renews the holds of one lease.
func (r *renewCall) renewLease(l *lease, parts []renewedHold) {
	var kept error
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		kept = r.b.leases.keepAlive(r.ctx, l)
	})
	for len(parts) > 0 {
		n := min(len(parts), maxOps)
		some := parts[:n]
		parts = parts[n:]
		r.run(func() {
			term := r.checkKeys(some)
			<-done
			kept := kept
			if kept == nil && l.leaderTerm() < term {
				kept = errOldLeader
			}
			for _, p := range some {
				if r.errs[p.i] == nil && kept != nil {
					r.errs[p.i] = r.holdError(&r.holds[p.i], kept, rpctypes.ErrLeaseNotFound)
				}
			}
		})
	}
}

// holdError is what an error means for a hold, of which one may say that it is gone.
func (r *renewCall) holdError(h *driver.Hold, err, gone error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gone):
		return errLostHold(h.Name)
	}
	return r.b.fail("renew", h.Name, err)
}

// checkKeys looks whether keys are the ones that were granted, and answers the leader's term.
func (r *renewCall) checkKeys(parts []renewedHold) uint64 {
	claims := make([]*ownerState, len(parts))
	for i, p := range parts {
		claims[i] = p.c
	}
	gone, term, err := r.b.missingKeys(r.ctx, claims)
	for i, p := range parts {
		switch {
		case err != nil:
			r.errs[p.i] = r.b.fail("renew", p.c.name, err)
		case gone[i]:
			r.b.owners.forget(p.c)
			r.errs[p.i] = errLostHold(p.c.name)
		}
	}
	return term
}

// missingKeys tells which claims' keys are not there any more, and the leader's term.
func (b *Backend) missingKeys(ctx context.Context, claims []*ownerState) (gone []bool, term uint64, err error) {
	var are []clientv3.Cmp
	var looks []clientv3.Op
	for _, c := range claims {
		are = append(are, createdAt(c.key, c.created))
		looks = append(looks, clientv3.OpGet(c.key, clientv3.WithKeysOnly()))
	}
	ask := func(ctx context.Context, kv clientv3.KV) (*clientv3.TxnResponse, error) {
		return kv.Txn(ctx).If(are...).Else(looks...).Commit()
	}
	resp, err := hedge(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) { return ask(ctx, b.client) },
		onNewConn(b.client, func(ctx context.Context, on *grpc.ClientConn) (*clientv3.TxnResponse, error) {
			return ask(ctx, clientv3.NewKVFromKVClient(pb.NewKVClient(on), b.client))
		}))
	if errors.Is(err, rpctypes.ErrTooManyOps) && len(claims) > 1 {
		first, term, err := b.missingKeys(ctx, claims[:len(claims)/2])
		second, term2, err2 := b.missingKeys(ctx, claims[len(claims)/2:])
		return append(first, second...), max(term, term2), errors.Join(err, err2)
	}
	if err != nil {
		return nil, 0, err
	}
	gone = make([]bool, len(claims))
	for i, c := range claims {
		if !resp.Succeeded {
			kvs := resp.Responses[i].GetResponseRange().Kvs
			gone[i] = len(kvs) == 0 || kvs[0].CreateRevision != c.created
		}
	}
	return gone, resp.Header.RaftTerm, nil
}

// moveHold attaches a hold's key to a lease that lives long enough.
func (r *renewCall) moveHold(h *driver.Hold, c *ownerState) error {
	from, err := r.b.leaseOf(r.ctx, c)
	if err == nil && from == nil {
		err = driver.ErrLost
	}
	if err != nil {
		return r.moveError(h, c, err)
	}
	l, err := r.leaseFor(h, from, c.fixed)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	r.b.owners.leaseChanging(c, l)
	answer, err := r.attachLease(c.key, c.created, c.modified, l)
	if err != nil {
		return r.moveError(h, c, err)
	}
	r.b.owners.leaseChanged(c, l, answer.Revision)
	return r.moveError(h, c, r.b.leases.ensureTerm(r.ctx, l, answer.RaftTerm))
}

// moveError is what the outcome of a move means for a hold.
func (r *renewCall) moveError(h *driver.Hold, c *ownerState, err error) error {
	switch {
	case errors.Is(err, driver.ErrLost):
		r.b.owners.forget(c)
	case errors.Is(err, errMoved):
		r.b.owners.update(c, func() { c.modified = 0 })
	}
	return r.holdError(h, err, driver.ErrLost)
}

// leaseFor is a lease that lives for at least the hold's TTL from the start of the renewal:
// the one that the key has, if it does.
func (r *renewCall) leaseFor(h *driver.Hold, from *lease, fixed bool) (*lease, error) {
	if h.Shorten {
		return r.b.leases.dedicated(r.ctx, h.TTL)
	}
	err := r.b.leases.keepAlive(r.ctx, from)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && from.granted() >= h.TTL {
		return from, err
	}
	if fixed {
		return r.b.leases.dedicated(r.ctx, h.TTL)
	}
	l, err := r.b.leases.forTTL(r.ctx, h.TTL)
	if err == nil && l.expiry().Before(r.start.Add(h.TTL)) {
		err = r.b.leases.keepAlive(r.ctx, l)
	}
	return l, err
}

var errMoved = errors.New("the key was attached to another lease meanwhile")

// attachLease moves a key to a lease, unless something was written to it meanwhile: so an earlier
// attempt that had no answer can't undo that later on. ErrLost: the key is not there.
func (r *renewCall) attachLease(key string, create, mod int64, l *lease) (*pb.ResponseHeader, error) {
	resp, err := r.b.client.Txn(r.ctx).If(modifiedAt(key, mod)).
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

// renewOther renews a hold that another connection has made: the lease is kept alive as it is.
func (r *renewCall) renewOther(h *driver.Hold) error {
	all, term, err := r.b.readQueueTerm(r.ctx, h.Name)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	place := all.find(h.Owner)
	if place < 0 || place >= all.holderCount() || all[place].foreign {
		return errLostHold(h.Name)
	}
	own := &all[place]
	theirs := r.b.leases.byID(own.lease)
	l, err := r.leaseFor(h, theirs, true)
	if err != nil {
		return r.holdError(h, err, rpctypes.ErrLeaseNotFound)
	}
	if l != theirs {
		_, err = r.attachLease(own.key, own.created, own.modified, l)
		return r.holdError(h, err, driver.ErrLost)
	}
	return r.holdError(h, r.b.leases.ensureTerm(r.ctx, l, term), rpctypes.ErrLeaseNotFound)
}
