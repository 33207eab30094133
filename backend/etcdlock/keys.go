package etcdlock

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// maxLooks bounds how often a call looks at what others change meanwhile.
const maxLooks = 4

var errOldLeader = errors.New("a leader that has been replaced has answered for the lease")

// readQueue reads the keys of a lock, and the leader's term.
func (b *Backend) readQueue(ctx context.Context, name string) (lockQueue, uint64, error) {
	folder := b.folder(name)
	resp, err := b.client.Get(ctx, folder, clientv3.WithRange(folderEnd(folder)))
	if err != nil {
		return nil, 0, err
	}
	return parseQueue(folder, resp.Kvs), resp.Header.RaftTerm, nil
}

// look reads what is stored for an Owner of whom this connection knows too little. It returns errChanged when it knows
// more.
func (b *Backend) look(ctx context.Context, o *ownerState) error {
	q, _, err := b.readQueue(ctx, o.name)
	if err != nil {
		return err
	}
	if i := q.find(o.owner); i >= 0 {
		b.owners.found(o, o.name, &q[i])
		return errChanged
	}
	if o.created == 0 {
		b.owners.update(o, func() { o.lease.own = false }) // the revocation may be late
		if err := b.leases.revoke(ctx, o.lease.id); err != nil {
			return err
		}
	}
	b.owners.forget(o)
	return errChanged
}

// keyChange is what has become of a key that this connection has written.
type keyChange int

const (
	keyUnchanged keyChange = iota
	keyWritten             // by another connection
	keyGone
)

// readKeys reports what has become of keys, and the leader's term.
func (b *Backend) readKeys(ctx context.Context, keys []keyWrite) (changes []keyChange, term uint64, err error) {
	var conds []clientv3.Cmp
	var gets []clientv3.Op
	for _, k := range keys {
		conds = append(conds, modifiedAt(k.key, k.written))
		gets = append(gets, clientv3.OpGet(k.key, clientv3.WithKeysOnly()))
	}
	send := func(ctx context.Context, kv clientv3.KV) (*clientv3.TxnResponse, error) {
		return kv.Txn(ctx).If(conds...).Else(gets...).Commit()
	}
	resp, err := hedge(ctx, &b.leases.pulse, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		resp, err := send(ctx, b.client)
		if err == nil {
			b.leases.pulse.beat()
		}
		return resp, err
	}, onNewConn(&b.leases, func(ctx context.Context, conn *grpc.ClientConn) (*clientv3.TxnResponse, error) {
		return send(ctx, clientv3.NewKVFromKVClient(pb.NewKVClient(conn), b.client))
	}))
	if errors.Is(err, rpctypes.ErrTooManyOps) && len(keys) > 1 {
		half := len(keys) / 2
		first, term, err := b.readKeys(ctx, keys[:half])
		second, term2, err2 := b.readKeys(ctx, keys[half:])
		return append(first, second...), max(term, term2), errors.Join(err, err2)
	}
	if err != nil {
		return nil, 0, err
	}
	changes = make([]keyChange, len(keys))
	for i, k := range keys {
		if resp.Succeeded {
			break
		}
		switch kvs := resp.Responses[i].GetResponseRange().Kvs; {
		case len(kvs) == 0 || kvs[0].CreateRevision != k.created:
			changes[i] = keyGone
		case kvs[0].ModRevision != k.written:
			changes[i] = keyWritten
		}
	}
	return changes, resp.Header.RaftTerm, nil
}

// touch writes an Owner's key as it was read, so that no earlier write to it can be executed any more. It returns the
// leader's term.
func (b *Backend) touch(ctx context.Context, o *ownerState, k *lockKey) (uint64, error) {
	resp, err := b.client.Txn(ctx).If(modifiedAt(k.key, k.modified)).Then(k.put(o.lease.id)).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		b.owners.doubt(o, false)
		return 0, errChanged
	case err != nil:
		b.owners.doubt(o, true)
		return 0, err
	case !resp.Succeeded:
		b.owners.doubt(o, false)
		return 0, errChanged
	}
	b.owners.wrote(o, resp.Header.Revision)
	return resp.Header.RaftTerm, nil
}

// secure makes sure that the lease of an Owner's key lives for ttl from start on: it keeps the lease alive, or moves the key
// to another one, if it is not own, if it is too short, or if it is too long since an extension is over. term is that of the answer
// which said that the key exists.
func (b *Backend) secure(ctx context.Context, o *ownerState, start time.Time, ttl time.Duration, term uint64) error {
	until := start.Add(ttl)
	for range maxLooks {
		l := o.lease
		if l.own && l.trusted(until, term) {
			return nil
		}
		if !l.own || !l.fits(ttl) {
			if err := b.move(ctx, o, ttl); err != nil {
				return err
			}
			continue
		}
		err := b.leases.keepAlive(ctx, l)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			b.owners.doubt(o, false)
			return errChanged
		}
		if err != nil {
			return err
		}
	}
	return errOldLeader
}

// move attaches an Owner's key to a lease that lives for ttl, or for what is left of its lease if that is more: others may have
// promised that.
func (b *Backend) move(ctx context.Context, o *ownerState, ttl time.Duration) error {
	resp, err := b.client.Get(ctx, o.key)
	if err != nil {
		return err
	}
	q := parseQueue(b.folder(o.name), resp.Kvs)
	if len(q) == 0 || q[0].modified != o.written {
		b.owners.doubt(o, false)
		return errChanged
	}
	if !o.mine {
		if _, err := b.touch(ctx, o, &q[0]); err != nil {
			return err
		}
	}
	left, err := b.leftOf(ctx, o, resp.Header.RaftTerm)
	if err != nil {
		return err
	}
	l, err := b.leases.takeFresh(ctx, max(ttl, left))
	if err != nil {
		return err
	}
	txn, err := b.client.Txn(ctx).If(modifiedAt(o.key, o.written)).Then(q[0].put(l.id)).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		b.leases.forgetIdle()
		return errChanged
	case err != nil:
		b.owners.update(o, func() { o.moving = l })
		b.owners.doubt(o, true)
		return err
	case !txn.Succeeded:
		b.leases.put(l)
		b.owners.doubt(o, false)
		return errChanged
	}
	b.owners.update(o, func() { o.lease, o.moving = l, o.lease })
	b.owners.wrote(o, txn.Header.Revision)
	return nil
}

// leftOf returns what is left at most of the lease of an Owner's key. term is the leader's: one that was replaced doesn't know how
// the lease was kept alive since.
func (b *Backend) leftOf(ctx context.Context, o *ownerState, term uint64) (time.Duration, error) {
	if o.lease.own {
		return time.Until(o.lease.expiry()), nil
	}
	resp, err := b.client.TimeToLive(ctx, o.lease.id)
	if err != nil {
		return 0, err
	}
	if resp.GetRaftTerm() < term {
		return 0, errOldLeader
	}
	if resp.TTL < 0 {
		b.owners.doubt(o, false)
		return 0, errChanged
	}
	return time.Duration(resp.TTL+1) * time.Second, nil // the servers round down
}
