package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lateAges are when after its release a key is deleted again: a write that got no answer
// may be done as long as a server works on it, which is for some seconds, or the network
// holds it back.
var lateAges = []time.Duration{time.Second, 4 * time.Second, 15 * time.Second, time.Minute}

// late deletes the keys of released Owners that may still be written.
type late struct {
	delete func(ctx context.Context, keys []string) error
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	keys  map[string]*lateKey
	timer *time.Timer // set as long as there are keys
}

type lateKey struct {
	owner string // who must not come again; empty if that is nobody
	since time.Time
	round int // of lateAges, that comes next
}

func (s *late) init(delete func(ctx context.Context, keys []string) error) {
	s.delete, s.keys = delete, map[string]*lateKey{}
	s.ctx, s.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

func (s *late) add(key, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = &lateKey{owner: owner, since: time.Now()}
	s.arm(lateAges[0])
}

// has reports whether a key may still be deleted.
func (s *late) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key] != nil
}

// bars reports whether a key of an owner may still be deleted. There are few, mostly none.
func (s *late) bars(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		if k.owner == owner {
			return true
		}
	}
	return false
}

// arm sets the timer, if it is not set. The mutex is held.
func (s *late) arm(d time.Duration) {
	if s.timer == nil && s.ctx.Err() == nil {
		s.timer = time.AfterFunc(d, s.tick)
	}
}

// tick begins a round.
func (s *late) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.wg.Go(func() {
		due := s.due()
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		defer cancel()
		s.done(due, s.delete(ctx, due))
	})
}

func (s *late) due() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key, k := range s.keys {
		if len(keys) < maxOps && time.Since(k.since) >= lateAges[k.round] {
			keys = append(keys, key)
		}
	}
	return keys
}

// done ends a round. What had no answer stays due.
func (s *late) done(keys []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if k := s.keys[key]; k != nil && err == nil {
			if k.round++; k.round == len(lateAges) {
				delete(s.keys, key)
			}
		}
	}
	s.timer = nil
	if len(s.keys) > 0 {
		s.arm(time.Second / 2)
	}
}

func (s *late) close() {
	s.mu.Lock()
	s.cancel()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// deleteKeys deletes keys that nobody needs.
func (b *Backend) deleteKeys(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	ops := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		ops[i] = clientv3.OpDelete(key)
	}
	_, err := b.client.Txn(ctx).Then(ops...).Commit()
	return err
}
