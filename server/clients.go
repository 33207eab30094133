package server

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

// quota counts what each identity has. The zero value is ready, and safe for concurrent use. It counts the
// holds that were granted here and the places in queues; one that is not renewed stops counting when its TTL is over.
type quota struct {
	mu      sync.Mutex
	holds   map[string]map[holdKey]counted // of an identity
	streams map[string]int

	mostOpen int // streams of all identities; 0: any number
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
	q.put(who, key, counted{mode: h.Mode, until: now.Add(acquire + h.TTL)})
	return false, false, nil
}

// put counts a hold. The caller has locked mu.
func (q *quota) put(who string, key holdKey, c counted) {
	if q.holds == nil {
		q.holds = map[string]map[holdKey]counted{}
	}
	if q.holds[who] == nil {
		q.holds[who] = map[holdKey]counted{}
	}
	q.holds[who][key] = c
}

// prolong counts a hold that is counted, or a place in a queue, for its TTL from now at least. Like a renewal, it
// shortens nothing.
func (q *quota) prolong(who string, h driver.Hold, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old, known := q.holds[who][keyOf(h)]
	if until := time.Now().Add(h.TTL); known && until.After(old.until) {
		q.holds[who][keyOf(h)] = counted{old.mode, until, waits}
	}
}

// set counts a hold that is counted, or a place in a queue, for its TTL from now, which replaces the longer time of
// its attempt.
func (q *quota) set(who string, h driver.Hold, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old, known := q.holds[who][keyOf(h)]; known {
		q.holds[who][keyOf(h)] = counted{old.mode, time.Now().Add(h.TTL), waits}
	}
}

// granted counts a hold under the mode of its grant, for its TTL from now, and for no less than before if it held. Its place
// may have ceased to count while it waited.
func (q *quota) granted(who string, h driver.Hold, held bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key, c := keyOf(h), counted{mode: h.Mode, until: time.Now().Add(h.TTL)}
	if before := q.holds[who][key].until; held && before.After(c.until) {
		c.until = before
	}
	q.put(who, key, c)
}

// remove ceases to count a hold, of whichever identity it is. That a hold of another kind is lost proves nothing.
func (q *quota) remove(h driver.Hold, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := keyOf(h)
	for who, own := range q.holds {
		c, known := own[key]
		if !known || lost && !c.mode.SameKind(h.Mode) {
			continue
		}
		delete(own, key)
		if len(own) == 0 {
			delete(q.holds, who)
		}
	}
}

// open counts a stream, or returns an error if the identity or the server has as many as it may have.
func (q *quota) open(who string, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.streams == nil {
		q.streams = map[string]int{}
	}
	if q.streams[who] >= most {
		return problem(http.StatusTooManyRequests, httpwire.Unsent, "%s has %d open requests that wait: that is the limit", &Identity{Name: who}, most)
	}
	if q.mostOpen > 0 && q.sumStreams() >= q.mostOpen {
		return problem(http.StatusTooManyRequests, httpwire.Unsent, "the server has %d open requests that wait, and needs the rest of its connections", q.mostOpen)
	}
	q.streams[who]++
	return nil
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
	return q.sumStreams()
}

// sumStreams is allStreams for a caller that has locked mu.
func (q *quota) sumStreams() int {
	n := 0
	for _, open := range q.streams {
		n += open
	}
	return n
}

// ownerCalls lets one call at a time act for an Owner. The zero value is ready, and safe for concurrent use.
type ownerCalls struct {
	mu sync.Mutex
	m  map[string]*ownerCall
}

// ownerCall acts for an Owner.
type ownerCall struct {
	all   *ownerCalls
	owner string
	yield chan struct{} // is closed when another call wants to act; nil: this one would not notice
	done  chan struct{} // is closed when it is over; nil: no other call wants to act
}

// begin waits until no other call acts for the Owner, and asks one that does to yield. The caller calls end at its end. If
// ctx ends first, begin returns its error.
func (o *ownerCalls) begin(ctx context.Context, owner string) (*ownerCall, error) {
	for {
		own, done := o.add(owner, true)
		if own != nil {
			return own, nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryBegin is begin without the wait: if another call acts for the Owner it returns errBusy.
func (o *ownerCalls) tryBegin(owner string) (*ownerCall, error) {
	own, _ := o.add(owner, false)
	if own == nil {
		return nil, errBusy
	}
	return own, nil
}

// add adds a call, or returns the end of the one that acts. With wants, that one is requested to yield.
func (o *ownerCalls) add(owner string, wants bool) (own *ownerCall, done <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other := o.m[owner]; other != nil {
		if wants && other.done == nil {
			other.done = make(chan struct{})
			if other.yield != nil {
				close(other.yield)
			}
		}
		return nil, other.done
	}
	if o.m == nil {
		o.m = map[string]*ownerCall{}
	}
	own = &ownerCall{all: o, owner: owner}
	o.m[owner] = own
	return own, nil
}

// wanted returns a channel that is closed as soon as another call wants to act.
func (c *ownerCall) wanted() <-chan struct{} {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.yield == nil {
		c.yield = make(chan struct{})
		if c.done != nil {
			close(c.yield)
		}
	}
	return c.yield
}

func (c *ownerCall) end() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	delete(c.all.m, c.owner)
	if c.done != nil {
		close(c.done)
	}
}

var (
	// errBusy is for a renewal while another call acts for the same Owner.
	errBusy = errors.New("another call for this owner is in progress")

	// errReleased is for an attempt that comes after the release of its Owner.
	errReleased = driver.Spent(driver.Unsent(errors.New("this owner was released before the attempt: another attempt needs a fresh owner")))

	// errYielded ends an acquire that waits when its client makes another call for the same Owner.
	errYielded = errors.New("the client has made another call for this owner")
)

const (
	eventLife  = time.Minute // of an event while its client is not connected
	maxPending = 1000        // events of a client
)

// subscribers has the events of each client that reads GET /v1/news, by the client's identity and secret. The zero value is
// ready, and safe for concurrent use.
type subscribers struct {
	mu sync.Mutex
	m  map[clientKey]*subscriber
}

// clientKey identifies a client. A secret that another identity has learned is none.
type clientKey struct{ identity, secret string }

// subscriber has the events that were not sent to its client yet.
type subscriber struct {
	pending []pendingEvent
	added   wait.Signal
	streams int
}

type pendingEvent struct {
	event string
	news  httpwire.News
	at    time.Time
}

// post adds an event for a client.
func (s *subscribers) post(client clientKey, event string, h driver.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.open(client)
	m.pending = append(m.pending, pendingEvent{event, httpwire.News{Name: h.Name, Owner: h.Owner}, time.Now()})
	if n := len(m.pending); n > maxPending {
		m.pending = slices.Delete(m.pending, 0, n-maxPending)
	}
	m.added.Notify()
	s.forget()
}

// open returns a client's subscriber. The caller has locked mu.
func (s *subscribers) open(client clientKey) *subscriber {
	if s.m == nil {
		s.m = map[clientKey]*subscriber{}
	}
	m := s.m[client]
	if m == nil {
		m = &subscriber{added: wait.NewSignal()}
		s.m[client] = m
	}
	return m
}

// forget deletes the subscribers whose events were not read in time. The caller has locked mu.
func (s *subscribers) forget() {
	for client, m := range s.m {
		if m.streams == 0 && (len(m.pending) == 0 || time.Since(m.pending[len(m.pending)-1].at) > eventLife) {
			delete(s.m, client)
		}
	}
}

func (s *subscribers) enter(client clientKey) *subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.open(client)
	m.streams++
	if len(m.pending) > 0 {
		m.added.Notify()
	}
	return m
}

func (s *subscribers) leave(m *subscriber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.streams--
	s.forget()
}

// take returns the pending events, which the caller sends.
func (s *subscribers) take(m *subscriber) []pendingEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := m.pending
	m.pending = nil
	return all
}

// putBack returns events that could not be sent.
func (s *subscribers) putBack(m *subscriber, unsent []pendingEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.pending = slices.Concat(unsent, m.pending)
	m.added.Notify() // another stream of the client may be open
}
