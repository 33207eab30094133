package server

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
)

// quota counts what each identity has. The zero value is ready, and safe for concurrent use. It counts the
// holds that were granted here and the places in queues; one that is not renewed stops counting when its TTL is over.
type quota struct {
	mu      sync.Mutex
	holds   map[string]map[holdKey]counted // of an identity
	streams map[string]int
}

// holdKey identifies a hold: an Owner may hold several names. It holds a name once, since kinds of locks exclude each other.
type holdKey struct{ name, owner string }

// counted is a hold, or a place in a queue.
type counted struct {
	mode  driver.Mode
	until time.Time // its TTL is over
	waits bool
}

func keyOf(h driver.Hold) holdKey { return holdKey{h.Name, h.Owner} }

// add counts a hold for as long as its acquire and its TTL take, or returns an error if the identity has as many
// as it may have. It reports whether the hold was counted before, and whether that was not as a place in a queue.
func (q *quota) add(who string, h driver.Hold, acquire time.Duration, most int) (known, held bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	own, key, now := q.holds[who], keyOf(h), time.Now()
	if old := own[key]; old.until.After(now) {
		return true, !old.waits, nil
	}
	if len(own) >= most {
		maps.DeleteFunc(own, func(_ holdKey, c counted) bool { return c.until.Before(now) })
	}
	if len(own) >= most {
		return false, false, problem(http.StatusTooManyRequests, httpwire.Unsent, "%d holds: that is the limit for %s", most, &Identity{Name: who})
	}
	if own == nil {
		own = map[holdKey]counted{}
		if q.holds == nil {
			q.holds = map[string]map[holdKey]counted{}
		}
		q.holds[who] = own
	}
	own[key] = counted{mode: h.Mode, until: now.Add(acquire + h.TTL)}
	return false, false, nil
}

// prolong counts a hold that is counted, or a place in a queue, for its TTL from now. Like a renewal, it shortens only
// with Shorten.
func (q *quota) prolong(who string, h driver.Hold, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old, known := q.holds[who][keyOf(h)]
	if until := time.Now().Add(h.TTL); known && (h.Shorten || until.After(old.until)) {
		q.holds[who][keyOf(h)] = counted{old.mode, until, waits}
	}
}

// granted counts a hold as prolong does, under the mode of its grant.
func (q *quota) granted(who string, h driver.Hold) {
	q.prolong(who, h, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	if c, known := q.holds[who][keyOf(h)]; known {
		c.mode = h.Mode
		q.holds[who][keyOf(h)] = c
	}
}

// remove ceases to count a hold, of whichever identity it is. That a hold of another kind is lost proves nothing.
func (q *quota) remove(h driver.Hold, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for who, own := range q.holds {
		if lost && !own[keyOf(h)].mode.SameKind(h.Mode) {
			continue
		}
		delete(own, keyOf(h))
		if len(own) == 0 {
			delete(q.holds, who)
		}
	}
}

// open counts a stream, unless the identity has as many as it may have.
func (q *quota) open(who string, most int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.streams == nil {
		q.streams = map[string]int{}
	}
	if q.streams[who] >= most {
		return false
	}
	q.streams[who]++
	return true
}

func (q *quota) close(who string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.streams[who]--; q.streams[who] == 0 {
		delete(q.streams, who)
	}
}

// allHolds returns how many holds are counted.
func (q *quota) allHolds() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, now := 0, time.Now()
	for _, own := range q.holds {
		for _, c := range own {
			if !c.waits && now.Before(c.until) {
				n++
			}
		}
	}
	return n
}

// allStreams returns how many streams are open.
func (q *quota) allStreams() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, open := range q.streams {
		n += open
	}
	return n
}
