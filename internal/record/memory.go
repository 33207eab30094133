package record

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// sighting is a record, and since when this client knows that version.
type sighting struct {
	Record
	since time.Time
	doubt error // of the write that it was read after: it may have taken effect, and was replaced since
}

// free reports whether the lock may be taken: it says so, or its hold is over.
func (s sighting) free(now time.Time) bool { return s.Holder == "" || s.left(now) == 0 }

// left returns for how long the version still has to stay before the hold is over for this client.
func (s sighting) left(now time.Time) time.Duration {
	return max(0, s.since.Add(patience(s.TTL)).Sub(now))
}

// patience is a TTL as those count it who wait for its end: a hundredth longer, because the holder's clock may be
// slower than theirs, and a little for clocks that count milliseconds.
func patience(ttl time.Duration) time.Duration {
	if ttl == 0 {
		ttl = driver.MaxTTL
	}
	return ttl + ttl/100 + 2*time.Millisecond
}

// memory is what a client remembers of records. All of it may be forgotten.
type memory struct {
	seen       recent[sighting] // by name: the last version seen
	unanswered recent[string]   // by Owner: the version that a write for it, without an answer, would replace
	waiters    recent[struct{}] // by Owner: an attempt was not granted
}

// saw remembers a version of name that was there at that instant, and returns the sighting. The version is known since it was
// seen first, or for longer if the store's clock says so.
func (m *memory) saw(name string, r Record, at time.Time) sighting {
	s := sighting{Record: r, since: at.Add(-r.Age)}
	if old, ok := m.seen.get(name); ok && old.Version == r.Version && old.since.Before(s.since) {
		s.since = old.since
	}
	if s.Fence == 0 && s.Holder != "" && !s.Foreign {
		s.Fence = s.Stamp // this version granted
	}
	m.seen.put(name, s)
	return s
}

// generation is how many entries a recent map keeps at least.
const generation = 4096

// recent is a map that keeps the last entries that were used: between one and two generations of them.
type recent[V any] struct {
	mu         sync.Mutex
	young, old map[string]V
}

func (m *recent[V]) get(k string) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.young[k]
	if !ok {
		if v, ok = m.old[k]; ok {
			m.keep(k, v)
		}
	}
	return v, ok
}

func (m *recent[V]) put(k string, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(k, v)
}

func (m *recent[V]) drop(k string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.young, k)
	delete(m.old, k)
}

// keep is put under mu.
func (m *recent[V]) keep(k string, v V) {
	if m.young == nil || len(m.young) >= generation {
		m.young, m.old = map[string]V{}, m.young
	}
	m.young[k] = v
}
