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
	// afloat is how many transactions are under way before those who come later wait for
	// each other.
	afloat = 2

	// maxLoad is how many sail together at most: fewer than etcd's limit of operations in
	// one transaction, which counts theirs as well.
	maxLoad = 64

	// shoreTime is how long a transaction waits to be taken along before it goes by itself:
	// those under way may have gone to a server that does not answer.
	shoreTime = 250 * time.Millisecond
)

// ferry takes transactions to the servers, those of many callers as parts of one. A
// transaction costs what gRPC and the servers' log take for it, more than what is in it.
//
// All parts see what was before the whole: so no two of them are about the same lock.
type ferry struct {
	kv     clientv3.KV
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	under    int // ways
	ashore   []*passenger
	most     int
	patience time.Duration
}

// passenger is a transaction that waits to be taken along.
type passenger struct {
	ctx    context.Context
	folder string
	txn    clientv3.Op
	done   chan struct{}
	resp   *clientv3.TxnResponse
	err    error
}

func (f *ferry) init(kv clientv3.KV) {
	f.kv, f.most, f.patience = kv, maxLoad, shoreTime
	f.ctx, f.cancel = context.WithCancel(context.Background())
}

// commit commits a transaction about the lock in a folder.
func (f *ferry) commit(ctx context.Context, folder string, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	f.mu.Lock()
	if f.under < afloat {
		f.under++
		f.mu.Unlock()
		defer f.back()
		return f.take(ctx, txn)
	}
	p := &passenger{ctx: ctx, folder: folder, txn: txn, done: make(chan struct{})}
	f.ashore = append(f.ashore, p)
	hurry := time.NewTimer(f.patience)
	f.mu.Unlock()
	defer hurry.Stop()
	for {
		select {
		case <-p.done:
			return p.resp, p.err
		case <-hurry.C:
			if f.leave(p) {
				return f.take(ctx, txn)
			}
		case <-ctx.Done():
			f.leave(p)
			return nil, ctx.Err()
		}
	}
}

// leave takes back what was not sent yet; false if it was.
func (f *ferry) leave(p *passenger) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.ashore, p)
	if i >= 0 {
		f.ashore = slices.Delete(f.ashore, i, i+1)
	}
	return i >= 0
}

// back has those who wait sail, after somebody has returned.
func (f *ferry) back() {
	f.mu.Lock()
	defer f.mu.Unlock()
	load := f.board()
	if len(load) == 0 {
		f.under--
		return
	}
	f.wg.Go(func() {
		defer f.back()
		f.sail(load)
	})
}

// board is who sails next: of each lock the first. The mutex is held.
func (f *ferry) board() (load []*passenger) {
	folders := make(map[string]bool, min(len(f.ashore), f.most))
	f.ashore = slices.DeleteFunc(f.ashore, func(p *passenger) bool {
		if folders[p.folder] || len(load) == f.most {
			return false
		}
		folders[p.folder] = true
		load = append(load, p)
		return true
	})
	return load
}

func (f *ferry) sail(load []*passenger) {
	if len(load) == 1 {
		f.land(load[0], nil, nil)
		return
	}
	ctx, cancel := f.span(load)
	defer cancel()
	txns := make([]clientv3.Op, len(load))
	for i, p := range load {
		txns[i] = p.txn
	}
	resp, err := f.take(ctx, clientv3.OpTxn(nil, txns, nil))
	if err != nil && !unsure(err) {
		f.refused(load, err)
		return
	}
	for i, p := range load {
		f.land(p, answerTo(resp, i), err)
	}
}

// land tells a passenger what became of it. Without an answer or an error it goes alone.
func (f *ferry) land(p *passenger, resp *clientv3.TxnResponse, err error) {
	if resp == nil && err == nil {
		resp, err = f.take(p.ctx, p.txn)
	}
	p.resp, p.err = resp, err
	close(p.done)
}

// answerTo is the answer to one passenger. That of a part has no header.
func answerTo(all *clientv3.TxnResponse, i int) *clientv3.TxnResponse {
	if all == nil {
		return nil
	}
	own := all.Responses[i].GetResponseTxn()
	return &clientv3.TxnResponse{Header: all.Header, Succeeded: own.Succeeded, Responses: own.Responses}
}

// refused sends each alone: one may have been why the servers refused all, or there were
// too many.
func (f *ferry) refused(load []*passenger, err error) {
	if errors.Is(err, rpctypes.ErrTooManyOps) {
		f.mu.Lock()
		f.most = max(min(f.most, len(load)/2), 1)
		f.mu.Unlock()
	}
	var wg sync.WaitGroup
	for _, p := range load {
		wg.Go(func() { f.land(p, nil, nil) })
	}
	wg.Wait()
}

// span is the time that all have together.
func (f *ferry) span(load []*passenger) (context.Context, context.CancelFunc) {
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

// take is one transaction's way to the servers. They are not told when it will be given
// up: keeping that in mind for each request costs them, and gRPC, a tenth of its time.
func (f *ferry) take(ctx context.Context, txn clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := f.kv.Do(untold{ctx}, txn)
	if err != nil {
		return nil, err
	}
	return resp.Txn(), nil
}

// untold ends as its context does, and does not say when.
type untold struct{ context.Context }

func (untold) Deadline() (time.Time, bool) { return time.Time{}, false }

// close ends what sails together.
func (f *ferry) close() {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}
