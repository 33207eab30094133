package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/wait"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxInFlight is the number of requests in flight from which on transactions are batched.
	maxInFlight = 2

	// maxBatch is below etcd's limit of operations in one transaction. The operations of
	// nested transactions count too.
	maxBatch = 64

	// maxDelay bounds how long a transaction waits for its batch before it is sent by itself:
	// the requests in flight may have gone to a server that doesn't answer.
	maxDelay = 250 * time.Millisecond
)

// txnBatcher commits transactions. While requests are in flight it combines the
// transactions of many callers into one request, as nested transactions: gRPC and the servers' log cost more than the
// operations.
//
// All nested transactions see the state before the request, so a batch has at most one of each
// lock.
type txnBatcher struct {
	kv     clientv3.KV
	ctx    context.Context
	cancel context.CancelFunc
	wg     wait.Group

	mu       sync.Mutex
	inFlight int
	pending  []*pendingTxn
	maxBatch int
	maxDelay time.Duration
}

// pendingTxn is a transaction that waits for its batch.
type pendingTxn struct {
	ctx    context.Context
	folder string
	txn    clientv3.Op
	done   chan struct{}
	doubt  error // of an earlier request that may have executed it; nil: there was none
	resp   *clientv3.TxnResponse
	err    error
}

func (b *txnBatcher) init(kv clientv3.KV) {
	b.kv, b.maxBatch, b.maxDelay = kv, maxBatch, maxDelay
	b.ctx, b.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

// commit commits a transaction on the lock in a folder.
func (b *txnBatcher) commit(ctx context.Context, folder string, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	b.mu.Lock()
	if b.inFlight < maxInFlight {
		b.inFlight++
		b.mu.Unlock()
		defer b.flush()
		return b.do(ctx, txn)
	}
	p := &pendingTxn{ctx: ctx, folder: folder, txn: txn, done: make(chan struct{})}
	b.pending = append(b.pending, p)
	delay := time.NewTimer(b.maxDelay)
	b.mu.Unlock()
	defer delay.Stop()
	for {
		select {
		case <-p.done:
			return p.resp, p.err
		case <-delay.C:
			if b.remove(p) {
				return b.do(ctx, txn)
			}
		case <-ctx.Done():
			b.remove(p)
			return nil, ctx.Err()
		}
	}
}

// remove removes p from the pending transactions. It returns false if p was sent.
func (b *txnBatcher) remove(p *pendingTxn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.pending, p)
	if i >= 0 {
		b.pending = slices.Delete(b.pending, i, i+1)
	}
	return i >= 0
}

// flush sends the next batch after a request has returned.
func (b *txnBatcher) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) == 0 || b.ctx.Err() != nil { // close waits for no new batch
		b.inFlight--
		return
	}
	batch := b.nextBatch()
	b.wg.Go(func() {
		defer b.flush()
		b.send(batch)
	})
}

// nextBatch takes the first pending transaction of each lock. The mutex is held.
func (b *txnBatcher) nextBatch() (batch []*pendingTxn) {
	folders := make(map[string]bool, min(len(b.pending), b.maxBatch))
	b.pending = slices.DeleteFunc(b.pending, func(p *pendingTxn) bool {
		if folders[p.folder] || len(batch) == b.maxBatch {
			return false
		}
		folders[p.folder] = true
		batch = append(batch, p)
		return true
	})
	return batch
}

func (b *txnBatcher) send(batch []*pendingTxn) {
	if len(batch) == 1 {
		b.sendAlone(batch[0])
		return
	}
	ctx, cancel := b.sharedContext(batch)
	defer cancel()
	txns := make([]clientv3.Op, len(batch))
	for i, p := range batch {
		txns[i] = p.txn
	}
	resp, err := b.do(ctx, clientv3.OpTxn(nil, txns, nil))
	if err != nil && (!outcomeUnknown(err) || errors.Is(err, rpctypes.ErrNoSpace)) {
		b.sendEach(batch, err)
		return
	}
	for i, p := range batch {
		if p.err = err; err == nil {
			own := resp.Responses[i].GetResponseTxn() // without a header
			p.resp = &clientv3.TxnResponse{Header: resp.Header, Succeeded: own.Succeeded, Responses: own.Responses}
		}
		close(p.done)
	}
}

func (b *txnBatcher) sendAlone(p *pendingTxn) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	p.resp, p.err = b.do(ctx, p.txn)
	if p.doubt != nil && p.err == nil && !changed(p.resp) {
		p.resp, p.err = nil, p.doubt
	}
	close(p.done)
}

// changed reports whether a transaction wrote or deleted what it was for.
func changed(resp *clientv3.TxnResponse) bool {
	if !resp.Succeeded || len(resp.Responses) == 0 {
		return false
	}
	d := resp.Responses[0].GetResponseDeleteRange()
	return d == nil || d.Deleted > 0
}

// sendEach sends each transaction of a refused batch alone: one may be why the server refused
// all, or there were too many. For want of space it refuses deletions only together with others, and it may have
// executed them all: what changes nothing now may have done so then.
func (b *txnBatcher) sendEach(batch []*pendingTxn, err error) {
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		b.mu.Lock()
		b.maxBatch = max(min(b.maxBatch, len(batch)/2), 1)
		b.mu.Unlock()
	}
	var wg wait.Group
	for _, p := range batch {
		if errors.Is(err, rpctypes.ErrNoSpace) {
			p.doubt = err
		}
		wg.Go(func() { b.sendAlone(p) })
	}
	wg.Wait()
}

// sharedContext returns a context that ends with the last of the batch's deadlines.
func (b *txnBatcher) sharedContext(batch []*pendingTxn) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, p := range batch {
		end, ok := p.ctx.Deadline()
		if !ok {
			return context.WithCancel(b.ctx)
		}
		if end.After(last) {
			last = end
		}
	}
	return context.WithDeadline(b.ctx, last)
}

// do commits one transaction. The server doesn't receive the deadline: a timer for each request costs
// it, and gRPC, a tenth of its time.
func (b *txnBatcher) do(ctx context.Context, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := b.kv.Do(noDeadline{ctx}, txn)
	if err != nil {
		return nil, err
	}
	return resp.Txn(), nil
}

// noDeadline hides the deadline of a context. It ends with the context all the same.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// close ends the batches in flight.
func (b *txnBatcher) close() {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.wg.Wait()
}
