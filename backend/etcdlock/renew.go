package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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

// Renew keeps the leases of the holds alive and checks that their keys are unchanged: a stream for each 16 holds and a
// transaction for each 128, in parallel.
func (b *Backend) Renew(ctx context.Context, holds []driver.Hold) []error {
	r := &leaseRenewal{b: b, start: time.Now(), holds: holds, errs: make([]error, len(holds)), slots: make(chan struct{}, maxParallel)}
	var err error
	if r.ctx, err = b.prepare(ctx); err != nil {
		for i := range r.errs {
			r.errs[i] = err
		}
		return r.errs
	}
	var known []int
	for i := range holds {
		h, o := &holds[i], b.owners.get(holds[i].Owner)
		r.states = append(r.states, o)
		invalid := h.ValidateRenewal()
		switch {
		case invalid != nil:
			r.errs[i] = b.fail("renew", h.Name, invalid)
		case r.isKnown(h, o):
			known = append(known, i)
		default:
			r.run(func() { r.errs[i] = r.renewStored(h) })
		}
	}
	for some := range slices.Chunk(known, maxOps) {
		r.renewKnown(some)
	}
	r.wg.Wait()
	return r.errs
}

// isKnown reports whether a hold can be renewed without a write, if its key is unchanged.
func (r *leaseRenewal) isKnown(h *driver.Hold, o *ownerState) bool {
	return o != nil && o.name == h.Name && o.mine && o.fence > 0 && o.moving == nil && o.lease.own &&
		(o.lease.fits(h.TTL) || o.lease.trusted(r.start.Add(h.TTL), 0))
}

// run runs f in parallel with others.
func (r *leaseRenewal) run(f func()) {
	r.wg.Go(func() {
		r.slots <- struct{}{}
		defer func() { <-r.slots }()
		f()
	})
}

// renewKnown renews holds whose keys this connection has written last.
func (r *leaseRenewal) renewKnown(indexes []int) {
	due, leases := r.dueLeases(indexes) // before checkKeys, which may change the states
	kept := map[int]error{}
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		if len(leases) > 0 {
			for j, err := range r.b.leases.keepAliveAll(r.ctx, leases) {
				kept[due[j]] = err
			}
		}
	})
	r.run(func() {
		unchanged, term := r.checkKeys(indexes)
		<-done
		for _, i := range unchanged {
			h, l, err := &r.holds[i], r.states[i].lease, kept[i]
			switch {
			case errors.Is(err, rpctypes.ErrLeaseNotFound), err == nil && !l.trusted(r.start.Add(h.TTL), term):
				r.errs[i] = r.renewStored(h)
			case err != nil:
				r.errs[i] = r.b.fail("renew", h.Name, err)
			}
		}
	})
}

// dueLeases returns the holds whose leases must be kept alive. Others live for long enough anyway, as those of holds that were
// extended do.
func (r *leaseRenewal) dueLeases(indexes []int) (due []int, leases []*lease) {
	for _, i := range indexes {
		if l := r.states[i].lease; l.fits(r.holds[i].TTL) {
			due, leases = append(due, i), append(leases, l)
		}
	}
	return due, leases
}

// checkKeys returns the holds whose keys are as this connection has written them, and the leader's term. It renews the
// others.
func (r *leaseRenewal) checkKeys(indexes []int) (unchanged []int, term uint64) {
	var keys []keyWrite
	for _, i := range indexes {
		keys = append(keys, r.states[i].keyWrite)
	}
	changes, term, err := r.b.readKeys(r.ctx, keys)
	for j, i := range indexes {
		switch h := &r.holds[i]; {
		case err != nil:
			r.errs[i] = r.b.fail("renew", h.Name, err)
		case changes[j] != keyUnchanged:
			r.errs[i] = r.renewStored(h)
		default:
			unchanged = append(unchanged, i)
		}
	}
	return unchanged, term
}

// renewStored renews a hold by what is stored. Only a look at that says that a hold is lost.
func (r *leaseRenewal) renewStored(h *driver.Hold) error {
	for range maxLooks {
		switch err := r.renewStoredOnce(h); {
		case errors.Is(err, driver.ErrLost):
			return err
		case err == nil:
			return nil
		case !errors.Is(err, errChanged):
			return r.b.fail("renew", h.Name, err)
		}
	}
	return r.b.fail("renew", h.Name, errChanged)
}

func (r *leaseRenewal) renewStoredOnce(h *driver.Hold) error {
	q, term, err := r.b.readQueue(r.ctx, h.Name)
	if err != nil {
		return err
	}
	o := r.b.owners.get(h.Owner)
	if o != nil && o.name != h.Name {
		o = nil
	}
	i := q.find(h.Owner)
	if i < 0 || i >= q.holderCount() || q[i].foreign || q[i].Later {
		if i < 0 && o != nil && o.created > 0 {
			r.b.owners.forget(o)
		}
		return errLostHold(h.Name)
	}
	o = r.b.owners.found(o, h.Name, &q[i])
	if !o.mine {
		if term, err = r.b.touch(r.ctx, o, &q[i]); err != nil {
			return err
		}
	}
	return r.b.secure(r.ctx, o, r.start, h.TTL, term)
}
