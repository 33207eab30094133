package zk

import (
	"slices"
	"sync"
)

// Event is a change of a node.
type Event int32

const (
	EventSession         Event = -1 // the session is over, and the watch with it
	EventDeleted         Event = 2
	EventDataChanged     Event = 3
	EventChildrenChanged Event = 4
)

// Watch notifies once of a change to a node.
type Watch struct {
	table *watchTable
	key   watchKey
	f     func(Event)
}

// Cancel ends the watch. The server's watch ends too if this was the only one for its node. Cancel
// doesn't wait: f may still be running, or about to.
func (w *Watch) Cancel() {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if e := w.table.entries[w.key]; e != nil {
		e.watches = slices.DeleteFunc(e.watches, func(other *Watch) bool { return other == w })
		w.table.tidy(w.key, e)
	}
}

// watchKind is the part of a node that is watched, numbered as in removeWatches.
type watchKind int32

const (
	kindChildren watchKind = 1
	kindData     watchKind = 2
)

// watchKey identifies a watch of the server, which has at most one for each key.
type watchKey struct {
	path string // absolute
	kind watchKind
}

// watchTable holds the watches of a session. All methods need mu.
type watchTable struct {
	mu      *sync.Mutex // the session's
	entries map[watchKey]*watchEntry
	remove  func(watchKey) // removes a watch from the server; called with mu held
}

type watchEntry struct {
	watches  []*Watch
	requests int  // how many requests that set the server's watch are unanswered
	armed    bool // the server has a watch, as far as is known
}

func (t *watchTable) entry(at watchKey) *watchEntry {
	e := t.entries[at]
	if e == nil {
		e = &watchEntry{}
		t.entries[at] = e
	}
	return e
}

// requested records that a request which sets w is queued. w may be nil, here and in answered.
func (t *watchTable) requested(w *Watch) {
	if w != nil {
		t.entry(w.key).requests++
	}
}

// answered records the end of a request that sets w: whether the server has its watch now, and
// whether the caller still wants it.
func (t *watchTable) answered(w *Watch, armed, wanted bool) {
	if w == nil {
		return
	}
	e := t.entry(w.key)
	e.requests--
	e.armed = e.armed || armed
	if wanted {
		e.watches = append(e.watches, w)
	}
	t.tidy(w.key, e)
}

// tidy removes an entry without watches. While one is requested the entry stays: the server can't
// tell that watch from the old one.
func (t *watchTable) tidy(at watchKey, e *watchEntry) {
	if len(e.watches) > 0 || e.requests > 0 {
		return
	}
	delete(t.entries, at)
	if e.armed {
		t.remove(at)
	}
}

// fire removes and returns the watches that an event notifies.
func (t *watchTable) fire(what Event, path string) []*Watch {
	switch what {
	case EventDeleted:
		return append(t.take(watchKey{path, kindData}), t.take(watchKey{path, kindChildren})...)
	case EventDataChanged:
		return t.take(watchKey{path, kindData})
	case EventChildrenChanged:
		return t.take(watchKey{path, kindChildren})
	}
	return nil
}

func (t *watchTable) take(at watchKey) []*Watch {
	e := t.entries[at]
	if e == nil {
		return nil
	}
	list := e.watches
	e.watches, e.armed = nil, false
	t.tidy(at, e)
	return list
}

// fireAll removes and returns all watches.
func (t *watchTable) fireAll() (all []*Watch) {
	for at := range t.entries {
		all = append(all, t.take(at)...)
	}
	return all
}

// rearm returns the keys that a new server must watch.
func (t *watchTable) rearm() []watchKey {
	var keys []watchKey
	for at, e := range t.entries {
		if e.armed = len(e.watches) > 0; e.armed {
			keys = append(keys, at)
		}
	}
	return keys
}
