package memlock

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shards is how many independent parts a store has, so that different names seldom
// wait for each other.
const shards = 64

// Store is what the connections to it share. It is safe for concurrent use.
type Store struct {
	name   string
	epoch  time.Time
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex
	locks map[string]*lock
	floor uint64 // greatest fence of any name that was forgotten here
	spare *lock  // the last one forgotten, to be used again
	_     [64]byte
}

var stores atomic.Uint64

// NewStore makes an empty store.
func NewStore() *Store { return newStore(fmt.Sprintf("mem:(%d)", stores.Add(1))) }

func newStore(name string) *Store {
	s := &Store{name: name, epoch: time.Now(), seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].locks = map[string]*lock{}
	}
	return s
}

// Connect makes an independent connection: nothing but the store is shared with
// another one.
func (s *Store) Connect() *Backend { return &Backend{store: s} }

// now is an instant: the time since the store was made.
func (s *Store) now() time.Duration { return time.Since(s.epoch) }

func (s *Store) shard(name string) *shard { return &s.shards[s.index(name)] }

func (s *Store) index(name string) uint64 { return maphash.String(s.seed, name) % shards }

func (s *Store) dropWatches(b *Backend) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for name, l := range sh.locks {
			l.watches = slices.DeleteFunc(l.watches, func(w *watch) bool { return w.endsWith(b) })
			sh.settle(name, l)
		}
		sh.mu.Unlock()
	}
}

// open finds the lock of a name or makes one, whose fences go on above those of all
// names that were forgotten.
func (sh *shard) open(name string, now time.Duration) *lock {
	if l := sh.locks[name]; l != nil {
		return l
	}
	sh.tidy(now)
	l := sh.spare
	if l == nil {
		l = new(lock)
	}
	sh.spare = nil
	l.fence = sh.floor
	sh.locks[name] = l
	return l
}

// tidy looks at two names for each one that is added. That is enough to keep those
// that ended without a release in the minority.
func (sh *shard) tidy(now time.Duration) {
	looks := 2
	for name, l := range sh.locks {
		l.sweep(now)
		sh.settle(name, l)
		if looks--; looks == 0 {
			return
		}
	}
}

// settle forgets a name that is of no use to anybody.
func (sh *shard) settle(name string, l *lock) {
	if l.idle() {
		sh.floor = max(sh.floor, l.fence)
		delete(sh.locks, name)
		sh.spare = l
	}
}
