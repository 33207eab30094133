package server

import (
	"net/http"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
)

// quota counts what each identity has. The zero value is ready, and safe for concurrent use. It counts the
// holds that were granted here; a hold that is not renewed stops counting when its TTL is over.
type quota struct {
	mu      sync.Mutex
	holds   map[string]map[string]time.Time // of an identity, by owner, when their TTL is over
	streams map[string]int
}

// add counts a hold, or returns an error if the identity has as many as it may have.
func (q *quota) add(who, owner string, ttl time.Duration, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.holds == nil {
		q.holds = map[string]map[string]time.Time{}
	}
	own := q.holds[who]
	if own == nil {
		own = map[string]time.Time{}
		q.holds[who] = own
	}
	now := time.Now()
	if _, known := own[owner]; !known && len(own) >= most {
		for o, until := range own {
			if until.Before(now) {
				delete(own, o)
			}
		}
		if len(own) >= most {
			return problem(http.StatusTooManyRequests, httpwire.Unsent, "%d holds: that is the limit for %s", most, displayName(who))
		}
	}
	own[owner] = now.Add(ttl)
	return nil
}

// renew prolongs a hold that is counted.
func (q *quota) renew(who, owner string, ttl time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.holds[who][owner]; known {
		q.holds[who][owner] = time.Now().Add(ttl)
	}
}

func (q *quota) remove(who, owner string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.holds[who], owner)
	if len(q.holds[who]) == 0 {
		delete(q.holds, who)
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
		for _, until := range own {
			if now.Before(until) {
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
