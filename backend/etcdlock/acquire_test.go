package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// One client, and one session, can have many holders and waiters of one lock.
func TestOneHolderAtATimeOnOneClient(t *testing.T) {
	client := newClient(t, testserver.SharedEtcd(t).Addr())
	one := backendOf(t, client, nil)
	for _, c := range []struct {
		name string
		open func() *Backend
	}{
		{"one backend", func() *Backend { return one }},
		{"a backend each", func() *Backend { return backendOf(t, client, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := request("", driver.Exclusive).Name
			var holders, turns atomic.Int32
			var last atomic.Uint64
			var wg sync.WaitGroup
			for range 16 {
				b := c.open()
				wg.Go(func() {
					for range 6 {
						r := request(name, driver.Exclusive)
						g, err := acquireQueued(t.Context(), b, r)
						if err != nil {
							t.Error(err)
							return
						}
						if n := holders.Add(1); n > 1 {
							t.Errorf("%d hold at once", n)
						}
						if g.Fence <= last.Swap(g.Fence) {
							t.Errorf("fence %d is not above the last", g.Fence)
						}
						turns.Add(1)
						time.Sleep(2 * time.Millisecond)
						holders.Add(-1)
						expect.OK(t, b.Release(t.Context(), r.Hold))
					}
				})
			}
			wg.Wait()
			if turns.Load() != 16*6 && !t.Failed() {
				t.Errorf("%d turns, want %d", turns.Load(), 16*6)
			}
		})
	}
}

// Of many tries of a lock that was just released exactly one is granted: tries don't block each
// other. With concurrency.Mutex none is, nearly always.
func TestTriesRaceForOneWinner(t *testing.T) {
	backends := []*Backend{shared(t), shared(t), shared(t)}
	name := request("", driver.Exclusive).Name
	for round := range 50 {
		before := request(name, driver.Exclusive)
		acquire(t, backends[0], before)
		var won [32]driver.Request
		var winners atomic.Int32
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range won {
			b := backends[i%len(backends)]
			wg.Go(func() {
				<-start
				r := request(name, driver.Exclusive)
				switch _, err := b.Acquire(t.Context(), r); {
				case err == nil:
					won[i] = r
					winners.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Error(err)
				}
			})
		}
		release(t, backends[0], before)
		close(start)
		wg.Wait()
		if winners.Load() != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, winners.Load())
		}
		i := slices.IndexFunc(won[:], func(r driver.Request) bool { return r.Owner != "" })
		if left := storedKeys(t, backends[0], name); len(left) != 1 || left[0].owner != won[i].Owner {
			t.Fatalf("round %d: the losers left keys: %v", round, left)
		}
		release(t, backends[i%len(backends)], won[i])
	}
}

// txnFate is the outcome of a transaction.
type txnFate int

const (
	passed   txnFate = iota
	muted            // it is executed, and the answer is lost
	heldBack         // it times out, and is executed later
)

// delayedKV is a KV whose next transactions have these outcomes.
type delayedKV struct {
	clientv3.KV

	mu    sync.Mutex
	fates []txnFate
	held  []clientv3.Op
}

// delayCalls wraps the KV of a backend's client.
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

// deliver executes the transactions that were held back, unless their leases have been revoked.
func (kv *delayedKV) deliver(t testing.TB) {
	t.Helper()
	if len(kv.held) == 0 {
		t.Fatal("nothing was held back")
	}
	for _, op := range kv.held {
		if _, err := kv.KV.Do(t.Context(), op); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
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

func (x *slowTxn) If(cs ...clientv3.Cmp) clientv3.Txn { x.cmps = cs; return x }

func (x *slowTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.then = ops; return x }

func (x *slowTxn) Else(ops ...clientv3.Op) clientv3.Txn { x.els = ops; return x }

func (x *slowTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := x.kv.Do(x.ctx, clientv3.OpTxn(x.cmps, x.then, x.els))
	return resp.Txn(), err
}

// An attempt that the network holds back, and that is executed after its owner has got the lock and
// renewed it for longer, shortens nothing.
func TestLateAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		mode  driver.Mode
		queue bool
		// before makes the next attempt have these outcomes.
		before func(t *testing.T, b, other *Backend, r *driver.Request)
		fates  []txnFate
	}{
		"a place in the queue": {driver.Read, true, func(t *testing.T, _, other *Backend, r *driver.Request) {
			acquire(t, other, request(r.Name, driver.Read))
		}, []txnFate{heldBack}},
		"a hold acquired again": {driver.Exclusive, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			acquire(t, b, *r)
		}, []txnFate{heldBack}},
		"a downgrade": {driver.Write, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			acquire(t, b, *r)
			r.Mode = driver.Read
		}, []txnFate{heldBack}},
		"a try after one without an answer": {driver.Exclusive, false, func(t *testing.T, b, _ *Backend, r *driver.Request) {
			delayCalls(b).next(muted)
			refused(t, b, *r, context.DeadlineExceeded)
		}, []txnFate{heldBack}},
		"a queued permit": {driver.Counted, true, func(t *testing.T, b, other *Backend, r *driver.Request) {
			r.Limit = 1
			first := *r
			first.Owner, first.Queue = driver.NewOwner(), false
			acquire(t, other, first)
			refused(t, b, *r, driver.ErrHeld)
			release(t, other, first)
		}, []txnFate{heldBack}},
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
			must.OK(t, b.Renew(t.Context(), []driver.Hold{longer})[0])
			kv.deliver(t)
			own := storedKeys(t, other, r.Name)
			left, err := other.client.TimeToLive(t.Context(), own[own.find(r.Owner)].lease)
			if err != nil || left.TTL < 3000 {
				t.Errorf("lives for %d s, %v", left.TTL, err)
			}
			expect.OK(t, b.Renew(t.Context(), []driver.Hold{longer})[0])
			release(t, b, r)
		})
	}
}

// A deletion that arrives late does not hit what the Owner was granted meanwhile.
func TestLateDeletionOfAPlace(t *testing.T) {
	b, other := shared(t), shared(t)
	first, r := request("", driver.Counted), request("", driver.Counted)
	first.Limit = 2
	r.Name, r.Limit, r.Queue = first.Name, 1, true
	acquire(t, other, first)
	kv := delayCalls(b)
	kv.next(passed, heldBack)
	refused(t, b, r, context.DeadlineExceeded) // it may not wait behind another limit
	release(t, other, first)
	acquire(t, b, r)
	kv.deliver(t)
	if q := storedKeys(t, other, r.Name); q.find(r.Owner) < 0 {
		t.Error("the key of a hold is deleted")
	}
	release(t, b, r)
}

// A waiter whose first attempt had no answer writes nothing while it waits.
func TestWaiterAfterALostAnswer(t *testing.T) {
	b, other := shared(t), shared(t)
	first, r := request("", driver.Exclusive), queued(request("", driver.Exclusive))
	r.Name = first.Name
	acquire(t, other, first)
	delayCalls(b).next(muted)
	refused(t, b, r, context.DeadlineExceeded)
	refused(t, b, r, driver.ErrHeld)
	before := storedKeys(t, other, r.Name)
	refused(t, b, r, driver.ErrHeld)
	after := storedKeys(t, other, r.Name)
	if i := before.find(r.Owner); i < 0 || before[i].modified != after[i].modified {
		t.Error("an attempt has written the key of a waiter")
	}
}

// A reader in the queue can't become a writer: readers behind it may hold already.
func TestQueuedReaderStaysReader(t *testing.T) {
	b := shared(t)
	first := request("", driver.Write)
	acquire(t, b, first)
	turncoat, reader := queued(request(first.Name, driver.Read)), queued(request(first.Name, driver.Read))
	refused(t, b, turncoat, driver.ErrHeld)
	refused(t, b, reader, driver.ErrHeld)
	release(t, b, first)
	acquire(t, b, reader)
	turncoat.Mode = driver.Write
	refused(t, b, turncoat, driver.ErrUnsupported)
	turncoat.Mode = driver.Read
	acquire(t, b, turncoat)
}

// An Owner's key from another connection keeps its kind and limit.
func TestOwnersKeyKeepsItsKind(t *testing.T) {
	b, other := shared(t), shared(t)
	for _, queue := range []bool{false, true} {
		permit := request("", driver.Counted)
		acquire(t, b, permit)
		acquire(t, b, request(permit.Name, driver.Counted))
		for _, change := range []func(*driver.Request){
			func(r *driver.Request) { r.Mode = driver.Exclusive },
			func(r *driver.Request) { r.Mode = driver.Write },
			func(r *driver.Request) { r.Limit = 3 },
		} {
			r := permit
			r.Queue = queue
			change(&r)
			refused(t, other, r, driver.ErrInvalid)
		}
		if all := storedKeys(t, b, permit.Name); len(all) != 2 || all[0].mode != driver.Counted || all[0].Limit != 2 {
			t.Errorf("queue %v: %+v", queue, all)
		}
	}
}

// "a" and "a/b" are two locks, though one has keys in the key range of the other.
func TestNamesBelowNames(t *testing.T) {
	b, other := shared(t), shared(t)
	above := request("", driver.Exclusive)
	below := request(above.Name+"/b", driver.Exclusive)
	acquire(t, other, below)
	info, err := b.Inspect(t.Context(), above.Name)
	if err != nil || len(info.Holders) != 0 {
		t.Errorf("shown as a holder of the shorter name: %+v, %v", info, err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // the longer names are always in use
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r := request(fmt.Sprint(above.Name, "/", i), driver.Exclusive)
			expect.OK(t, expect.Err(other.Acquire(t.Context(), r)))
			expect.OK(t, other.Release(t.Context(), r.Hold))
		}
	})
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		for _, queue := range []bool{false, true} {
			r, next := request(above.Name, mode), request(above.Name, driver.Exclusive)
			r.Queue = queue
			acquire(t, b, r)
			if mode == driver.Exclusive {
				refused(t, other, next, driver.ErrHeld)
				refused(t, other, queued(next), driver.ErrHeld)
				release(t, b, r)
				acquire(t, other, next)
				release(t, other, next)
				continue
			}
			release(t, b, r)
		}
	}
	close(stop)
	wg.Wait()
	release(t, other, below)
}

// Simultaneous tries of readers and permits don't block each other.
func TestSharedTriesAtOnce(t *testing.T) {
	backends := []*Backend{shared(t), shared(t)}
	for _, mode := range []driver.Mode{driver.Read, driver.Counted} {
		name := request("", mode).Name
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r := request(name, mode)
				r.Limit = 20
				expect.OK(t, expect.Err(backends[i%2].Acquire(t.Context(), r)), mode)
			})
		}
		wg.Wait()
	}
}

// A request that is too large, for the server or the client, is ErrInvalid: a retry is no use.
func TestTooLarge(t *testing.T) {
	b := mustOpen(t, testserver.SharedEtcd(t).URL())
	for _, size := range []int{512 << 10, 1600 << 10, 3 << 20} {
		for _, queue := range []bool{false, true} {
			r := request("", driver.Exclusive)
			r.Queue = queue
			r.Meta = map[string]string{"note": strings.Repeat("x", size)}
			if size < 1<<20 {
				acquire(t, b, r)
				release(t, b, r)
				continue
			}
			refused(t, b, r, driver.ErrInvalid)
		}
	}
}

// A lease that has ended unnoticed only delays an attempt.
func TestAcquireOnALeaseThatHasEnded(t *testing.T) {
	b, admin := shared(t), shared(t)
	for i, queue := range []bool{true, false} {
		first := request("", driver.Exclusive)
		acquire(t, b, first)
		lease := storedKeys(t, admin, first.Name)[0].lease
		release(t, b, first)
		must.Get(admin.client.Revoke(t.Context(), lease))(t)
		r := request("", driver.Exclusive)
		r.Queue = queue
		acquire(t, b, r)
		if len(storedKeys(t, admin, r.Name)) != 1 {
			t.Errorf("case %d: no key", i)
		}
	}
}

// The end of a lease loses its hold, and no other one. Later holds get another lease.
func TestEndOfTheLease(t *testing.T) {
	b, admin := shared(t), shared(t)
	one, lost := withOnLost(request("", driver.Exclusive))
	two := request("", driver.Write)
	acquire(t, b, one)
	acquire(t, b, two)
	old := storedKeys(t, admin, one.Name)[0].lease
	must.Get(admin.client.Revoke(t.Context(), old))(t)
	errs := b.Renew(t.Context(), []driver.Hold{one.Hold, two.Hold})
	if !errors.Is(errs[0], driver.ErrLost) || errs[1] != nil {
		t.Errorf("renew after the lease's end: %v", errs)
	}
	three := request("", driver.Exclusive)
	acquire(t, b, three)
	if now := storedKeys(t, admin, three.Name)[0].lease; now == old {
		t.Error("the next hold has the lease that ended")
	}
	// Renew has returned the loss already; a watch may have been quicker.
	if len(lost) > 1 {
		t.Error("notified twice")
	}
}
