package record

import (
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// sighting is a record, and since when this client has seen that version.
type sighting struct {
	Record
	since time.Time
}

// free reports whether the lock may be taken: it says so, or its hold is over.
func (s sighting) free(now time.Time) bool { return s.Holder == "" || s.left(now) == 0 }

// left returns for how long this client still has to see the version before the hold is over.
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
	mu         sync.Mutex
	seen       recent[sighting] // by name: the last version seen
	unanswered recent[string]   // by Owner: the version that a write for it, without an answer, would replace
}

// recall returns what was seen of name last.
func (m *memory) recall(name string) (sighting, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen.get(name)
}

// saw remembers a version of name that is known since then, and returns the sighting. Only a version that was not seen
// before is seen since then.
func (m *memory) saw(name string, r Record, since time.Time) sighting {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := sighting{r, since}
	if old, ok := m.seen.get(name); ok && old.Version == r.Version {
		s.since = old.since
	}
	m.seen.put(name, s)
	return s
}

// noteUnanswered remembers that a write for owner over a version may take effect later.
func (m *memory) noteUnanswered(owner, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unanswered.put(owner, version)
}

// mayTake reports whether a write for owner without an answer could still replace version.
func (m *memory) mayTake(owner, version string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.unanswered.get(owner)
	return ok && v == version
}

// answered forgets what was noted for owner.
func (m *memory) answered(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unanswered.drop(owner)
}

// generation is how many entries a recent map keeps at least.
const generation = 4096

// recent is a map that keeps the last entries that were used: between one and two generations of them.
type recent[V any] struct{ young, old map[string]V }

func (m *recent[V]) get(k string) (V, bool) {
	if v, ok := m.young[k]; ok {
		return v, true
	}
	v, ok := m.old[k]
	if ok {
		m.put(k, v)
	}
	return v, ok
}

func (m *recent[V]) put(k string, v V) {
	if m.young == nil || len(m.young) >= generation {
		m.young, m.old = map[string]V{}, m.young
	}
	m.young[k] = v
}

func (m *recent[V]) drop(k string) {
	delete(m.young, k)
	delete(m.old, k)
}
