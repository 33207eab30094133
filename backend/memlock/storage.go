package memlock

import (
	"fmt"
	"hash/maphash"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shards is the number of independent parts of a store. Different names seldom wait for
// each other.
const shards = 64

// Store holds the locks that its connections share. It is safe for concurrent use.
type Store struct {
	name   string
	epoch  time.Time
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex
	locks map[string]*lockEntry
	floor int64      // greatest fence of all names that were forgotten here
	spare *lockEntry // the last one forgotten, for reuse
	_     [64]byte
}

var stores atomic.Uint64

// NewStore makes an empty store.
func NewStore() *Store { return newStore(fmt.Sprintf("mem:(%d)", stores.Add(1))) }

func newStore(name string) *Store {
	s := &Store{name: name, epoch: time.Now(), seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].locks = map[string]*lockEntry{}
	}
	return s
}

// named has the stores of mem:NAME. They are never dropped: a hold outlives its connection.
var named = struct {
	sync.Mutex
	m map[string]*Store
}{m: map[string]*Store{}}

func namedStore(name string) *Store {
	named.Lock()
	defer named.Unlock()
	s := named.m[name]
	if s == nil {
		s = newStore("mem:" + url.PathEscape(name))
		named.m[name] = s
	}
	return s
}

// now returns the ns since the store was made, and one more: 0 is no time of a claim.
func (s *Store) now() int64 { return int64(time.Since(s.epoch)) + 1 }

func (s *Store) shard(name string) *shard {
	return &s.shards[maphash.String(s.seed, name)%shards]
}

// removeClosedWatchers removes and signals the watchers of closed connections.
func (s *Store) removeClosedWatchers() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for name, l := range sh.locks {
			l.watchers = slices.DeleteFunc(l.watchers, func(w *watcher) bool {
				if !w.closed.Load() {
					return false
				}
				w.ready.Notify()
				return true
			})
			sh.forgetIdle(name, l)
		}
		sh.mu.Unlock()
	}
}

func (sh *shard) removeWatcher(name string, w *watcher) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks[name]
	if l == nil {
		return
	}
	if i := slices.Index(l.watchers, w); i >= 0 {
		l.watchers = slices.Delete(l.watchers, i, i+1)
		sh.forgetIdle(name, l)
	}
}

// open returns the state of name, and makes it if there is none. Its fences go on above
// the fences of all names that were forgotten.
func (sh *shard) open(name string, now int64) *lockEntry {
	if l := sh.locks[name]; l != nil {
		return l
	}
	sh.expireSome(now)
	l := sh.spare
	if l == nil {
		l = new(lockEntry)
	}
	sh.spare = nil
	l.Number = sh.floor
	sh.locks[name] = l
	return l
}

// expireSome visits two names for each one that is added. That keeps the names whose holds
// expired without a release in the minority.
func (sh *shard) expireSome(now int64) {
	visits := 2
	for name, l := range sh.locks {
		l.Expire(now)
		sh.forgetIdle(name, l)
		if visits--; visits == 0 {
			return
		}
	}
}

// forgetIdle removes name if it has no holders, waiters and watchers.
func (sh *shard) forgetIdle(name string, l *lockEntry) {
	if l.idle() {
		sh.floor = max(sh.floor, l.Number)
		delete(sh.locks, name)
		sh.spare = l
	}
}
