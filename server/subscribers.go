package server

import (
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
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
