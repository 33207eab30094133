package etcdlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// holdBack keeps all transactions pending until release is called with their expected number.
func holdBack(t *testing.T, b *Backend) (release func(n int)) {
	f := &b.batcher
	f.mu.Lock()
	f.inFlight += maxInFlight
	f.maxDelay = time.Hour
	f.mu.Unlock()
	return func(n int) {
		t.Helper()
		eventually(t, "all are pending", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.pending) == n
		})
		for range maxInFlight {
			f.flush()
		}
	}
}

func TestTransactionsShareBatches(t *testing.T) {
	b := shared(t)
	acquire(t, b, request("", driver.Exclusive)) // grants the lease
	release := holdBack(t, b)
	const names, each = 30, 3
	var wg sync.WaitGroup
	var won [names]atomic.Int64
	for i := range names {
		name := request("", driver.Exclusive).Name
		for n := range each {
			r := request(name, driver.Exclusive)
			r.Queue = n == 0 && i%2 == 0
			wg.Go(func() {
				_, err := b.Acquire(t.Context(), r)
				if err == nil {
					won[i].Add(1)
				} else if !errors.Is(err, driver.ErrHeld) {
					t.Error(err)
				}
			})
		}
	}
	release(names * each)
	wg.Wait()
	for i := range won {
		expect.Equal(t, won[i].Load(), 1, "got lock", i)
	}
}

// A server without a leader refuses batches at once, as it does single transactions.
func TestBatchesRequireALeader(t *testing.T) {
	s, b := serveReplacedLeader(t)
	acquire(t, b, request("", driver.Exclusive)) // grants the lease
	release := holdBack(t, b)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			expect.OK(t, expect.Err(b.Acquire(t.Context(), request("", driver.Exclusive))))
		})
	}
	release(2)
	wg.Wait()
	if batched, leaderless := s.batched.Load(), s.leaderless.Load(); batched != 2 || leaderless != 0 {
		t.Errorf("%d transactions in a batch, %d requests that need no leader; want 2 and 0", batched, leaderless)
	}
}

// A transaction whose caller gave up while it was pending isn't sent.
func TestCanceledTransactionIsNotSent(t *testing.T) {
	b, admin := shared(t), shared(t)
	acquire(t, b, request("", driver.Exclusive))
	release := holdBack(t, b)
	r := request("", driver.Exclusive)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, r)
		gone <- err
	}()
	eventually(t, "it waits", func() bool {
		b.batcher.mu.Lock()
		defer b.batcher.mu.Unlock()
		return len(b.batcher.pending) == 1
	})
	cancel()
	expect.Be(t, <-gone, context.Canceled)
	release(0)
	acquire(t, admin, request(r.Name, driver.Exclusive))
}

// If a server refuses a batch, because of one transaction or because of their number, the others
// succeed.
func TestOneRefusalDoesNotFailTheBatch(t *testing.T) {
	for name, args := range map[string][]string{"lease": nil, "operations": {"--max-txn-ops", "6"}} {
		t.Run(name, func(t *testing.T) {
			b := openAt(t, testserver.Etcd(t, testserver.EtcdOptions{Args: args}).Addr(), nil)
			acquire(t, b, request("", driver.Exclusive))
			release := holdBack(t, b)
			const good = 20
			var wg sync.WaitGroup
			for range good {
				wg.Go(func() {
					expect.OK(t, expect.Err(b.Acquire(t.Context(), request("", driver.Exclusive))))
				})
			}
			wg.Go(func() {
				bad := clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("bad", "", clientv3.WithLease(7))}, nil)
				expect.Be(t, expect.Err(b.batcher.commit(t.Context(), "bad/", bad)), rpctypes.ErrLeaseNotFound, "a lease that is not there")
			})
			release(good + 1)
			wg.Wait()
		})
	}
}

// Requests to a server that doesn't answer delay no other transaction.
func TestHangingBatchDelaysNoOther(t *testing.T) {
	b := shared(t)
	acquire(t, b, request("", driver.Exclusive)) // grants the lease
	holdBack(t, b)
	b.batcher.mu.Lock()
	b.batcher.maxDelay = time.Millisecond
	b.batcher.mu.Unlock()
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	release(t, b, r)
}

// silentKV is a server that doesn't answer until answer is closed.
type silentKV struct {
	clientv3.KV
	answer chan struct{}
	sent   atomic.Int64
}

func (kv *silentKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	kv.sent.Add(1)
	select {
	case <-kv.answer:
		return (&clientv3.TxnResponse{}).OpResponse(), nil
	case <-ctx.Done():
		return clientv3.OpResponse{}, ctx.Err()
	}
}

// Close ends transactions that were pending, even those whose callers have no deadline.
func TestCloseEndsSentTransactions(t *testing.T) {
	for _, n := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var b txnBatcher
			kv := &silentKV{answer: make(chan struct{})}
			b.init(kv)
			b.inFlight = maxInFlight
			errs := make(chan error, n)
			for i := range n {
				go func() {
					_, err := b.commit(context.Background(), string(rune('a'+i)), clientv3.OpTxn(nil, nil, nil))
					errs <- err
				}()
			}
			synctest.Wait()
			b.flush()
			synctest.Wait()
			b.close()
			for range n {
				if err := <-errs; !errors.Is(err, context.Canceled) || kv.sent.Load() != 1 {
					t.Errorf("%d in the batch: %v after %d requests, want 1", n, err, kv.sent.Load())
				}
			}
		})
	}
}

// A transaction that returns after Close sends no batch, which would outlive Close.
func TestNoBatchAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b txnBatcher
		kv := &silentKV{answer: make(chan struct{})}
		b.init(kv)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxInFlight + 1 {
			go b.commit(ctx, string(rune('a'+i)), clientv3.OpTxn(nil, nil, nil))
			synctest.Wait()
		}
		b.close()
		close(kv.answer)
		synctest.Wait()
		expect.Equal(t, kv.sent.Load(), maxInFlight, "requests")
		cancel()
	})
}
