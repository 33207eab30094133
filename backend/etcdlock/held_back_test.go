package etcdlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// txnFate is what becomes of a transaction.
type txnFate int

const (
	passed   txnFate = iota
	muted            // it is done, and the answer is lost
	heldBack         // the caller is told that time is up, and it is done later
)

// delayedKV is a KV whose next transactions have these fates.
type delayedKV struct {
	clientv3.KV

	mu    sync.Mutex
	fates []txnFate
	held  []clientv3.Op
}

// delayCalls puts a delayedKV before a backend's client.
func delayCalls(b *Backend) *delayedKV {
	kv := &delayedKV{KV: b.client.KV}
	b.client.KV = kv
	return kv
}

func (kv *delayedKV) next(fates ...txnFate) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	kv.fates = fates
}

func (kv *delayedKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	kv.mu.Lock()
	f := passed
	if len(kv.fates) > 0 {
		f, kv.fates = kv.fates[0], kv.fates[1:]
	}
	if f == heldBack {
		kv.held = append(kv.held, op)
	}
	kv.mu.Unlock()
	if f == heldBack {
		return clientv3.OpResponse{}, context.DeadlineExceeded
	}
	resp, err := kv.KV.Do(ctx, op)
	if f == muted {
		err = context.DeadlineExceeded
	}
	return resp, err
}

func (kv *delayedKV) Txn(ctx context.Context) clientv3.Txn { return &slowTxn{kv: kv, ctx: ctx} }

// deliver does what was held back.
func (kv *delayedKV) deliver(t testing.TB) {
	t.Helper()
	if len(kv.held) == 0 {
		t.Fatal("nothing was held back")
	}
	for _, op := range kv.held {
		if _, err := kv.KV.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
}

type slowTxn struct {
	kv        *delayedKV
	ctx       context.Context
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (x *slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { x.cmps = cs; return x }
func (x *slowTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.then = ops; return x }
func (x *slowTxn) Else(ops ...clientv3.Op) clientv3.Txn { x.els = ops; return x }

func (x *slowTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := x.kv.Do(x.ctx, clientv3.OpTxn(x.cmps, x.then, x.els))
	return resp.Txn(), err
}

// An attempt that is held back by the network, and done after its owner has got the lock and
// renewed it for longer, shortens nothing.
func TestAttemptThatIsDoneLate(t *testing.T) {
	for name, c := range map[string]struct {
		mode  driver.Mode
		queue bool
		// before brings about that the next attempt has these fates.
		before func(t *testing.T, b, other *Backend, r *driver.Request)
		fates  []txnFate
	}{
		"a place in line": {driver.Read, true, func(t *testing.T, _, other *Backend, r *driver.Request) {
			acquire(t, other, request(r.Name, driver.Read))
		}, []txnFate{heldBack}},
		"a hold asked for again": {driver.Exclusive, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			acquire(t, b, *r)
		}, []txnFate{heldBack}},
		"a downgrade": {driver.Write, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			acquire(t, b, *r)
			r.Mode = driver.Read
		}, []txnFate{heldBack}},
		"a try after one without an answer": {driver.Exclusive, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			delayCalls(b).next(muted)
			refused(t, b, *r, context.DeadlineExceeded)
		}, []txnFate{passed, heldBack}},
		"a permit out of the line": {driver.Counted, true, func(t *testing.T, b, other *Backend, r *driver.Request) {
			r.Limit = 1
			first := *r
			first.Owner, first.Queue = driver.NewOwner(), false
			acquire(t, other, first)
			refused(t, b, *r, driver.ErrHeld)
			release(t, other, first)
		}, []txnFate{passed, heldBack}},
		"a hold of another connection": {driver.Exclusive, true, func(t *testing.T, _, other *Backend, r *driver.Request) {
			acquire(t, other, *r)
		}, []txnFate{passed, heldBack}},
	} {
		t.Run(name, func(t *testing.T) {
			b, other := shared(t), shared(t)
			r := request("", c.mode)
			r.TTL, r.Queue = 20*time.Second, c.queue
			c.before(t, b, other, &r)
			kv := delayCalls(b)
			kv.next(c.fates...)
			refused(t, b, r, context.DeadlineExceeded)
			acquire(t, b, r)
			longer := r.Hold
			longer.TTL = time.Hour
			if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; err != nil {
				t.Fatal(err)
			}
			kv.deliver(t)
			own := storedKeys(t, other, r.Name)
			left, err := other.client.TimeToLive(t.Context(), own[own.find(r.Owner)].lease)
			if err != nil || left.TTL < 3000 {
				t.Errorf("lives for %d s, %v", left.TTL, err)
			}
			if err := b.Renew(t.Context(), []driver.Hold{longer})[0]; err != nil {
				t.Error(err)
			}
			release(t, b, r)
		})
	}
}
