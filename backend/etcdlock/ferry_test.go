package etcdlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// holdBack keeps all ashore until the result is called, with the number of those who must have
// come by then.
func holdBack(t *testing.T, b *Backend) (sail func(n int)) {
	f := &b.batcher
	f.mu.Lock()
	f.inFlight += maxInFlight
	f.maxDelay = time.Hour
	f.mu.Unlock()
	return func(n int) {
		t.Helper()
		eventually(t, "all wait for the ferry", func() bool {
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
	acquire(t, b, request("", driver.Exclusive)) // which makes the lease
	sail := holdBack(t, b)
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
	sail(names * each)
	wg.Wait()
	for i := range won {
		if n := won[i].Load(); n != 1 {
			t.Errorf("%d got lock %d", n, i)
		}
	}
}

// Who gave up before the ferry left is not taken along.
func TestCanceledTransactionIsNotSent(t *testing.T) {
	b, admin := shared(t), shared(t)
	acquire(t, b, request("", driver.Exclusive))
	sail := holdBack(t, b)
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
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	sail(0)
	acquire(t, admin, request(r.Name, driver.Exclusive))
}

// What the servers refuse to one they do not refuse to those who came at the same time;
// nor what they refuse because there are too many.
func TestOneRefusalDoesNotFailTheBatch(t *testing.T) {
	for name, args := range map[string][]string{"lease": nil, "operations": {"--max-txn-ops", "6"}} {
		t.Run(name, func(t *testing.T) {
			b := openAt(t, testserver.Etcd(t, testserver.EtcdOptions{Args: args}).Addr(), nil)
			acquire(t, b, request("", driver.Exclusive))
			sail := holdBack(t, b)
			const good = 20
			var wg sync.WaitGroup
			for range good {
				wg.Go(func() {
					if _, err := b.Acquire(t.Context(), request("", driver.Exclusive)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Go(func() {
				bad := clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("bad", "", clientv3.WithLease(7))}, nil)
				if _, err := b.batcher.commit(t.Context(), "bad/", bad); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
					t.Errorf("a lease that is not there: %v", err)
				}
			})
			sail(good + 1)
			wg.Wait()
		})
	}
}

// However often a lock is taken, the servers have few keys to remember: until they compact
// their history each attempt goes through all that there ever were.
func TestKeysAreReused(t *testing.T) {
	b := shared(t)
	r := request("", driver.Exclusive)
	seen := map[string]bool{}
	for range 20 {
		next := request(r.Name, driver.Exclusive)
		acquire(t, b, next)
		seen[b.owners.get(next.Owner).key] = true
		release(t, b, next)
	}
	if len(seen) != 1 {
		t.Errorf("%d keys for a lock that one at a time had", len(seen))
	}
	if n := len(b.owners.byKey); n != 0 {
		t.Errorf("%d keys are remembered without a claim", n)
	}
}

// Transactions on their way to a server that does not answer keep nobody else from
// going.
func TestHangingBatchDelaysNobody(t *testing.T) {
	b := shared(t)
	acquire(t, b, request("", driver.Exclusive)) // which makes the lease
	holdBack(t, b)
	b.batcher.mu.Lock()
	b.batcher.maxDelay = time.Millisecond
	b.batcher.mu.Unlock()
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	release(t, b, r)
}
