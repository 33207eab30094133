package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// deleteAges are when after its release a key is deleted again: a write that got no answer
// may be done as long as a server works on it, which is for some seconds, or the network
// holds it back.
var deleteAges = []time.Duration{time.Second, 4 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute}

// tombstoneLife is how long after its release such a key is not used again: what was sent for
// it, also these deletions, must not hit whoever has it next.
const tombstoneLife = 10 * time.Minute

// tombstones deletes the keys of released Owners that may still be written.
type tombstones struct {
	delete func(ctx context.Context, keys []string) error
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	keys   map[string]*tombstone
	owners map[string]string // their keys
	timer  *time.Timer       // set as long as there are keys
}

type tombstone struct {
	owner     string // who must not come again; empty if that is nobody
	since     time.Time
	deletions int // of deleteAges, that comes next
}

// finished: it has been deleted for the last time.
func (k *tombstone) finished() bool { return k.deletions == len(deleteAges) }

func (s *tombstones) init(delete func(ctx context.Context, keys []string) error) {
	s.delete, s.keys, s.owners = delete, map[string]*tombstone{}, map[string]string{}
	s.ctx, s.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

func (s *tombstones) add(key, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = &tombstone{owner: owner, since: time.Now()}
	if owner != "" {
		s.owners[owner] = key
	}
	s.arm()
}

// has reports whether a key may still be written or deleted.
func (s *tombstones) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key] != nil
}

// hasOwner reports whether an owner has such a key.
func (s *tombstones) hasOwner(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[owner] != ""
}

// arm sets the timer, if it is not set. The mutex is held.
func (s *tombstones) arm() {
	if s.timer == nil && s.ctx.Err() == nil {
		s.timer = time.AfterFunc(deleteAges[0], s.tick)
	}
}

// tick begins a round.
func (s *tombstones) tick() {
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

func (s *tombstones) due() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key, k := range s.keys {
		switch age := time.Since(k.since); {
		case k.finished() && age > tombstoneLife:
			delete(s.keys, key)
			delete(s.owners, k.owner)
		case !k.finished() && age >= deleteAges[k.deletions] && len(keys) < maxOps:
			keys = append(keys, key)
		}
	}
	return keys
}

// done ends a round. What had no answer stays due.
func (s *tombstones) done(keys []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if k := s.keys[key]; k != nil && err == nil {
			k.deletions++
		}
	}
	s.timer = nil
	if len(s.keys) > 0 {
		s.arm()
	}
}

func (s *tombstones) close() {
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
