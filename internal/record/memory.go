package record

import (
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

// saw remembers a version of name that is known since then, and returns the sighting. Only a version that was not seen
// before is seen since then.
func (b *Backend) saw(name string, r Record, since time.Time) sighting {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := sighting{r, since}
	if old, ok := b.seen.get(name); ok && old.Version == r.Version {
		s.since = old.since
	}
	b.seen.put(name, s)
	return s
}

// noteUnanswered remembers that a write for owner over a version may take effect later.
func (b *Backend) noteUnanswered(owner, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unanswered.put(owner, version)
}

// mayTake reports whether a write for owner without an answer could still replace version.
func (b *Backend) mayTake(owner, version string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.unanswered.get(owner)
	return ok && v == version
}

// answered forgets what was noted for owner.
func (b *Backend) answered(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unanswered.drop(owner)
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
