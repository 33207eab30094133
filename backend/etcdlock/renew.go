package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// maxParallel bounds the requests that one Renew has in flight.
const maxParallel = 8

// leaseRenewal is a call of Renew. Its functions name a hold by its index.
type leaseRenewal struct {
	b      *Backend
	ctx    context.Context
	start  time.Time
	holds  []driver.Hold
	states []*ownerState // nil: unknown to this backend
	errs   []error
	slots  chan struct{}
	wg     wait.Group
}

// Renew keeps the leases of the holds alive and checks that their keys exist: one request for each
// lease, and one for each 128 holds, in parallel.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	r := &leaseRenewal{b: b, start: time.Now(), holds: holds, errs: make([]error, len(holds)), slots: make(chan struct{}, maxParallel)}
	var err error
	if r.ctx, err = b.prepare(ctx); err != nil {
		for i := range r.errs {
			r.errs[i] = err
		}
		return r.errs
	}
	byLease := map[*lease][]int{}
	for i := range holds {
		h, o := &holds[i], b.owners.get(holds[i].Owner)
		r.states = append(r.states, o)
		invalid := h.ValidateRenewal()
		switch {
		case invalid != nil:
			r.errs[i] = b.fail("renew", h.Name, invalid)
		case b.detached:
			if l := b.owners.renewable(o, h, r.start); l != nil {
				byLease[l] = append(byLease[l], i)
			} else {
				r.run(func() { r.errs[i] = r.takeOver(h) })
			}
		case o == nil || o.name != h.Name || o.created == 0:
			r.run(func() { r.errs[i] = r.renewOther(h) })
		case o.fence == 0:
			r.errs[i] = errLostHold(h.Name)
		case o.lease == nil || o.lease.lastReply().ttl < h.TTL:
			r.run(func() { r.errs[i] = r.changeLease(h, o) })
		default:
			byLease[o.lease] = append(byLease[o.lease], i)
		}
	}
	for l, indexes := range byLease {
		r.renewLease(l, indexes)
	}
	r.wg.Wait()
	return r.errs
}

// run runs f in parallel with others.
func (r *leaseRenewal) run(f func()) {
	r.wg.Go(func() {
		r.slots <- struct{}{}
		defer func() { <-r.slots }()
		f()
	})
}

// renewLease renews the holds of one lease.
func (r *leaseRenewal) renewLease(l *lease, indexes []int) {
	var kept error
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		kept = r.b.leases.keepAlive(r.ctx, l)
	})
	for some := range slices.Chunk(indexes, maxOps) {
		r.run(func() {
			present, term := r.checkKeys(some)
			<-done
			kept := kept
			if kept == nil && l.lastReply().term < term {
				kept = errOldLeader
			}
			for _, i := range present {
				if r.b.detached && errors.Is(kept, rpctypes.ErrLeaseNotFound) {
					r.errs[i] = r.takeOver(&r.holds[i])
					continue
				}
				r.errs[i] = r.holdError(&r.holds[i], kept, rpctypes.ErrLeaseNotFound)
			}
		})
	}
}

// holdError returns the error for a hold. It is lost if err is gone.
func (r *leaseRenewal) holdError(h *driver.Hold, err, gone error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gone):
		return errLostHold(h.Name)
	}
	return r.b.fail("renew", h.Name, err)
}

// checkKeys checks that the keys written by the grants exist. It returns those that do, and the leader's
// term. The key of a detached hold must be unchanged; otherwise it is taken over.
func (r *leaseRenewal) checkKeys(indexes []int) (present []int, term uint64) {
	var states []*ownerState
	for _, i := range indexes {
		states = append(states, r.states[i])
	}
	missing, term, err := r.b.missingKeys(r.ctx, states, r.b.detached)
	for j, i := range indexes {
		switch h := &r.holds[i]; {
		case err != nil:
			r.errs[i] = r.b.fail("renew", h.Name, err)
		case missing[j] && r.b.detached:
			r.errs[i] = r.takeOver(h)
		case missing[j]:
			r.b.owners.forget(states[j])
			r.errs[i] = errLostHold(h.Name)
		default:
			present = append(present, i)
		}
	}
	return present, term
}

// missingKeys reports which Owners' keys are gone, or changed if they must not be, and the leader's term.
func (b *Backend) missingKeys(ctx context.Context, states []*ownerState, unchanged bool) (missing []bool, term uint64, err error) {
	var conds []clientv3.Cmp
	var gets []clientv3.Op
	for _, o := range states {
		if unchanged {
			conds = append(conds, modifiedAt(o.key, o.modified))
		} else {
			conds = append(conds, createdAt(o.key, o.created))
		}
		gets = append(gets, clientv3.OpGet(o.key, clientv3.WithKeysOnly()))
	}
	send := func(ctx context.Context, kv clientv3.KV) (*clientv3.TxnResponse, error) {
		return kv.Txn(ctx).If(conds...).Else(gets...).Commit()
	}
	resp, err := hedge(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) { return send(ctx, b.client) },
		onNewConn(b.client, func(ctx context.Context, conn *grpc.ClientConn) (*clientv3.TxnResponse, error) {
			return send(ctx, clientv3.NewKVFromKVClient(pb.NewKVClient(conn), b.client))
		}))
	if errors.Is(err, rpctypes.ErrTooManyOps) && len(states) > 1 {
		half := len(states) / 2
		first, term, err := b.missingKeys(ctx, states[:half], unchanged)
		second, term2, err2 := b.missingKeys(ctx, states[half:], unchanged)
		return append(first, second...), max(term, term2), errors.Join(err, err2)
	}
	if err != nil {
		return nil, 0, err
	}
	missing = make([]bool, len(states))
	for i, o := range states {
		if !resp.Succeeded {
			kvs := resp.Responses[i].GetResponseRange().Kvs
			missing[i] = len(kvs) == 0 || kvs[0].CreateRevision != o.created || unchanged && kvs[0].ModRevision != o.modified
		}
	}
	return missing, resp.Header.RaftTerm, nil
}

// changeLease attaches a hold's key to a lease whose TTL is long enough.
func (r *leaseRenewal) changeLease(h *driver.Hold, o *ownerState) error {
	from, err := r.b.leaseOf(r.ctx, o)
	if err == nil && from == nil {
		err = driver.ErrLost
	}
	if err != nil {
		return r.changeError(h, o, err)
	}
	l, err := r.leaseFor(h, from, o.fixed)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	r.b.owners.leaseChanging(o, l)
	answer, err := r.attachLease(o.key, o.created, o.modified, l)
	if err != nil {
		return r.changeError(h, o, err)
	}
	r.b.owners.leaseChanged(o, l, answer.Revision)
	return r.changeError(h, o, r.b.leases.ensureTerm(r.ctx, l, answer.RaftTerm))
}

func (r *leaseRenewal) changeError(h *driver.Hold, o *ownerState, err error) error {
	switch {
	case errors.Is(err, driver.ErrLost):
		r.b.owners.forget(o)
	case errors.Is(err, errMoved):
		r.b.owners.update(o, func() { o.modified = 0 })
	}
	return r.holdError(h, err, driver.ErrLost)
}

// leaseFor returns a lease that lives for at least the hold's TTL from the start of the call: the
// key's own if possible.
func (r *leaseRenewal) leaseFor(h *driver.Hold, from *lease, fixed bool) (*lease, error) {
	err := r.b.leases.keepAlive(r.ctx, from)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && from.lastReply().ttl >= h.TTL {
		return from, err
	}
	if fixed {
		return r.b.leases.dedicated(r.ctx, h.TTL)
	}
	l, err := r.b.leases.forTTL(r.ctx, h.TTL)
	if err == nil && l.lastReply().expiry().Before(r.start.Add(h.TTL)) {
		err = r.b.leases.keepAlive(r.ctx, l)
	}
	return l, err
}

var errMoved = errors.New("the key was attached to another lease meanwhile")

// attachLease attaches a key to a lease, unless the key was written meanwhile: so an earlier
// attempt without an answer can't undo it later. ErrLost: the key is gone.
func (r *leaseRenewal) attachLease(key string, created, modified int64, l *lease) (*pb.ResponseHeader, error) {
	resp, err := r.b.client.Txn(r.ctx).If(modifiedAt(key, modified)).
		Then(clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		err = driver.ErrLost
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].CreateRevision == created {
			err = errMoved
		}
	}
	return resp.Header, err
}

// renewOther renews a hold that another connection has created, if possible with its lease.
func (r *leaseRenewal) renewOther(h *driver.Hold) error {
	q, term, err := r.b.readQueue(r.ctx, h.Name)
	if err != nil {
		return r.b.fail("renew", h.Name, err)
	}
	i := q.find(h.Owner)
	if i < 0 || i >= q.holderCount() || q[i].foreign {
		return errLostHold(h.Name)
	}
	current := r.b.leases.byID(q[i].lease)
	l, err := r.leaseFor(h, current, true)
	if err != nil {
		return r.holdError(h, err, rpctypes.ErrLeaseNotFound)
	}
	if l != current {
		answer, err := r.attachLease(q[i].key, q[i].created, q[i].modified, l)
		if err != nil {
			return r.holdError(h, err, driver.ErrLost)
		}
		term = answer.RaftTerm
	}
	return r.holdError(h, r.b.leases.ensureTerm(r.ctx, l, term), rpctypes.ErrLeaseNotFound)
}

// maxTakeOvers bounds how often a renewal reads a key that others write meanwhile.
const maxTakeOvers = 4

var errBusyKey = errors.New("others wrote the key again and again")

// takeOver renews a detached hold by moving its key to this connection's lease. It relies on nothing but what is
// stored.
func (r *leaseRenewal) takeOver(h *driver.Hold) error {
	for range maxTakeOvers {
		done, err := r.takeOverOnce(h)
		if done || err != nil {
			return err
		}
	}
	return r.b.fail("renew", h.Name, errBusyKey)
}

func (r *leaseRenewal) takeOverOnce(h *driver.Hold) (done bool, err error) {
	q, _, err := r.b.readQueue(r.ctx, h.Name)
	if err != nil {
		return false, r.b.fail("renew", h.Name, err)
	}
	i := q.find(h.Owner)
	if i < 0 || i >= q.holderCount() || q[i].foreign {
		if o := r.b.owners.get(h.Owner); i < 0 && o != nil && o.name == h.Name {
			r.b.owners.forget(o)
		}
		return false, errLostHold(h.Name)
	}
	k := &q[i]
	switch {
	case k.TTL == 0: // of a connection whose holds live as long as its leases
		return true, r.renewOther(h)
	case k.Later:
		return false, errLostHold(h.Name) // a place whose turn it is
	}
	life := max(h.TTL, r.b.owners.promised(h.Owner, k))
	l, err := r.b.leases.forTTL(r.ctx, life)
	if err != nil {
		return false, r.b.fail("renew", h.Name, err)
	}
	o := r.b.owners.takenOver(h, k, r.start, life)
	if o == nil {
		return false, r.b.fail("renew", h.Name, errBusyKey) // this Owner has another name, too
	}
	k.Fence = cmp.Or(k.Fence, uint64(k.modified))
	resp, err := r.b.client.Txn(r.ctx).If(modifiedAt(k.key, k.modified)).Then(k.put(l)).Commit()
	switch err := r.b.leaseError(l, err); {
	case errors.Is(err, errLeaseEnded):
		return false, nil
	case err != nil:
		return false, r.b.fail("renew", h.Name, err)
	}
	if !resp.Succeeded || !r.b.owners.written(o, k, l, resp.Header.Revision) {
		return false, nil
	}
	if err = r.b.leases.ensureTerm(r.ctx, l, resp.Header.RaftTerm); err == nil {
		err = r.b.closedMeanwhile()
	}
	return true, r.holdError(h, err, rpctypes.ErrLeaseNotFound)
}
