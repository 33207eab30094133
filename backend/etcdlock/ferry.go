package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxInFlight is how many transactions are under way before those who come later wait for
	// each other.
	maxInFlight = 2

	// maxBatch is how many sail together at most: fewer than etcd's limit of operations in
	// one transaction, which counts theirs as well.
	maxBatch = 64

	// maxDelay is how long a transaction waits to be taken along before it goes by itself:
	// those under way may have gone to a server that does not answer.
	maxDelay = 250 * time.Millisecond
)

// txnBatcher takes transactions to the servers, those of many callers as parts of one. A
// transaction costs what gRPC and the servers' log take for it, more than what is in it.
//
// All parts see what was before the whole: so no two of them are about the same lock.
type txnBatcher struct {
	kv     clientv3.KV
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	inFlight int // ways
	pending  []*pendingTxn
	maxBatch int
	maxDelay time.Duration
}

// pendingTxn is a transaction that waits to be taken along.
type pendingTxn struct {
	ctx    context.Context
	folder string
	txn    clientv3.Op
	done   chan struct{}
	resp   *clientv3.TxnResponse
	err    error
}

func (f *txnBatcher) init(kv clientv3.KV) {
	f.kv, f.maxBatch, f.maxDelay = kv, maxBatch, maxDelay
	f.ctx, f.cancel = context.WithCancel(context.Background())
}

// commit commits a transaction about the lock in a folder.
func (f *txnBatcher) commit(ctx context.Context, folder string, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	f.mu.Lock()
	if f.inFlight < maxInFlight {
		f.inFlight++
		f.mu.Unlock()
		defer f.done()
		return f.do(ctx, txn)
	}
	p := &pendingTxn{ctx: ctx, folder: folder, txn: txn, done: make(chan struct{})}
	f.pending = append(f.pending, p)
	hurry := time.NewTimer(f.maxDelay)
	f.mu.Unlock()
	defer hurry.Stop()
	for {
		select {
		case <-p.done:
			return p.resp, p.err
		case <-hurry.C:
			if f.remove(p) {
				return f.do(ctx, txn)
			}
		case <-ctx.Done():
			f.remove(p)
			return nil, ctx.Err()
		}
	}
}

// remove takes back what was not sent yet; false if it was.
func (f *txnBatcher) remove(p *pendingTxn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.pending, p)
	if i >= 0 {
		f.pending = slices.Delete(f.pending, i, i+1)
	}
	return i >= 0
}

// done has those who wait sail, after somebody has returned.
func (f *txnBatcher) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	load := f.nextBatch()
	if len(load) == 0 {
		f.inFlight--
		return
	}
	f.wg.Go(func() {
		defer f.done()
		f.send(load)
	})
}

// nextBatch is who sails next: of each lock the first. The mutex is held.
func (f *txnBatcher) nextBatch() (load []*pendingTxn) {
	folders := make(map[string]bool, min(len(f.pending), f.maxBatch))
	f.pending = slices.DeleteFunc(f.pending, func(p *pendingTxn) bool {
		if folders[p.folder] || len(load) == f.maxBatch {
			return false
		}
		folders[p.folder] = true
		load = append(load, p)
		return true
	})
	return load
}

func (f *txnBatcher) send(load []*pendingTxn) {
	if len(load) == 1 {
		f.resolve(load[0], nil, nil)
		return
	}
	ctx, cancel := f.sharedContext(load)
	defer cancel()
	txns := make([]clientv3.Op, len(load))
	for i, p := range load {
		txns[i] = p.txn
	}
	resp, err := f.do(ctx, clientv3.OpTxn(nil, txns, nil))
	if err != nil && !outcomeUnknown(err) {
		f.sendEach(load, err)
		return
	}
	for i, p := range load {
		f.resolve(p, replyOf(resp, i), err)
	}
}

// resolve tells a passenger what became of it. Without an answer or an error it goes alone.
func (f *txnBatcher) resolve(p *pendingTxn, resp *clientv3.TxnResponse, err error) {
	if resp == nil && err == nil {
		resp, err = f.do(p.ctx, p.txn)
	}
	p.resp, p.err = resp, err
	close(p.done)
}

// replyOf is the answer to one passenger. That of a part has no header.
func replyOf(all *clientv3.TxnResponse, i int) *clientv3.TxnResponse {
	if all == nil {
		return nil
	}
	own := all.Responses[i].GetResponseTxn()
	return &clientv3.TxnResponse{Header: all.Header, Succeeded: own.Succeeded, Responses: own.Responses}
}

// sendEach sends each alone: one may have been why the servers refused all, or there were
// too many.
func (f *txnBatcher) sendEach(load []*pendingTxn, err error) {
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		f.mu.Lock()
		f.maxBatch = max(min(f.maxBatch, len(load)/2), 1)
		f.mu.Unlock()
	}
	var wg sync.WaitGroup
	for _, p := range load {
		wg.Go(func() { f.resolve(p, nil, nil) })
	}
	wg.Wait()
}

// sharedContext is the time that all have together.
func (f *txnBatcher) sharedContext(load []*pendingTxn) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, p := range load {
		end, ok := p.ctx.Deadline()
		if !ok {
			return context.WithCancel(f.ctx)
		}
		if end.After(last) {
			last = end
		}
	}
	return context.WithDeadline(f.ctx, last)
}

// do is one transaction's way to the servers. They are not told when it will be given
// up: keeping that in mind for each request costs them, and gRPC, a tenth of its time.
func (f *txnBatcher) do(ctx context.Context, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := f.kv.Do(noDeadline{ctx}, txn)
	if err != nil {
		return nil, err
	}
	return resp.Txn(), nil
}

// noDeadline ends as its context does, and does not say when.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// close ends what sails together.
func (f *txnBatcher) close() {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}
