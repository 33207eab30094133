package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// station is a hub's connection to one server. One goroutine, which lives while anything
// is wanted of the server, makes the connection agree with that: so commands for one
// channel are sent in order, and a new connection needs no care of its own.
//
// Everything but the channel is guarded by the hub's mutex.
type station struct {
	hub     *hub
	server  redisconn.Server
	changed chan struct{} // holds a signal that something is wanted

	channels map[string]*channel
	quit     []string // to be unsubscribed
	session  *session
	idle     int // rounds without channels
}

// session is one connection.
type session struct {
	// asked counts subscriptions that are not confirmed, and left those given up whose
	// end is not. A channel that was given up and wanted again must not take the first
	// one's confirmation for the second's.
	asked, left map[string]int
	waits       time.Time // since when an answer is owed; zero: none is
	broken      chan error
}

// confirmTime is how long a server may take to confirm a subscription, or to give another sign
// of life, before a new connection is tried. Waiters poll meanwhile.
const confirmTime = 2 * time.Second

var errUnconfirmed = errors.New("the connection for subscriptions does not answer")

func (s *station) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// run serves one connection after the other, until nothing is wanted.
func (s *station) run() {
	backoff := shortestBackoff
	for !s.finished() {
		n := s.newSession()
		l, err := s.server.Listen(s.hub.ctx, func(e redisconn.Event) { s.on(n, e) })
		if err == nil {
			backoff = shortestBackoff
			err = s.serve(n, l)
			l.Close()
		}
		if err != nil {
			// Those who have waited since before are not kept waiting for a server that
			// can't be reached or refuses.
			s.failUnarmed(err)
			s.hub.client.Refresh()
			s.pause(backoff)
			backoff = min(2*backoff, longestBackoff)
			s.rehome()
		}
	}
}

func (s *station) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.hub.ctx.Done():
	}
}

// finished is where the goroutine decides to end: nothing is wanted any more.
func (s *station) finished() bool {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.wanted() {
		s.tidy()
		return false
	}
	s.session = nil
	if h.stations[s.server] == s {
		delete(h.stations, s.server)
	}
	return true
}

func (s *station) newSession() *session {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, c := range s.channels {
		c.asked, c.live = false, false
	}
	s.quit = nil
	s.session = &session{asked: map[string]int{}, left: map[string]int{}, broken: make(chan error, 1)}
	return s.session
}

// serve keeps the connection in agreement with what is wanted; nil: nothing is.
func (s *station) serve(n *session, l redisconn.Listener) error {
	tick := time.NewTicker(s.hub.round)
	defer tick.Stop()
	for {
		if err := s.sync(n, l); err != nil {
			return err
		}
		select {
		case <-s.changed:
		case err := <-n.broken:
			return err
		case <-s.hub.ctx.Done():
			return nil
		case <-tick.C:
			s.rehome()
			s.hub.mu.Lock()
			s.tidy()
			wanted := s.wanted()
			mute := !n.waits.IsZero() && time.Since(n.waits) > confirmTime
			s.hub.mu.Unlock()
			if !wanted {
				return nil // and run decides, with this connection closed
			}
			if mute {
				return errUnconfirmed
			}
		}
	}
}

// rehome sends channels away whose lock another server has now.
func (s *station) rehome() {
	h := s.hub
	h.mu.Lock()
	keys := map[string]string{}
	for name, c := range s.channels {
		keys[name] = c.key
	}
	h.mu.Unlock()
	for name, key := range keys {
		ctx, cancel := context.WithTimeout(h.ctx, defaultRound)
		at, err := h.client.At(ctx, key)
		cancel()
		if err != nil || at == s.server {
			continue
		}
		h.mu.Lock()
		if c := s.channels[name]; c != nil && h.ctx.Err() == nil {
			h.settle(c, at)
		}
		h.mu.Unlock()
	}
}

// wanted: there is a reason to be connected. The mutex is held.
func (s *station) wanted() bool {
	return s.hub.ctx.Err() == nil && (len(s.channels) > 0 || s.idle < keepConnection)
}

// leave gives up a channel. The mutex is held.
func (s *station) leave(c *channel) {
	delete(s.channels, c.name)
	if c.asked {
		s.quit = append(s.quit, c.name)
	}
}

// sync sends what is missing.
func (s *station) sync(n *session, l redisconn.Listener) error {
	s.hub.mu.Lock()
	for _, c := range s.channels {
		if c.idle > keepChannel {
			s.hub.forget(c)
		}
	}
	less := s.quit
	s.quit = nil
	for _, name := range less {
		n.left[name]++
	}
	var more []string
	for name, c := range s.channels {
		if !c.asked {
			c.asked = true
			n.asked[name]++
			more = append(more, name)
		}
	}
	if len(more) > 0 && n.waits.IsZero() {
		n.waits = time.Now()
	}
	s.hub.mu.Unlock()
	if err := s.hub.voice.each(s.hub.ctx, less, l.Unsubscribe); err != nil {
		return err
	}
	return s.hub.voice.each(s.hub.ctx, more, l.Subscribe)
}

// tidy counts a round for what is not used. The mutex is held.
func (s *station) tidy() {
	for _, c := range s.channels {
		if len(c.watches) == 0 {
			c.idle++
		}
	}
	if len(s.channels) == 0 {
		s.idle++
	}
}

// on is called by the connection of session n.
func (s *station) on(n *session, e redisconn.Event) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.session != n {
		return
	}
	n.waits = time.Time{}
	c := s.channels[e.Channel]
	switch e.Kind {
	case redisconn.Subscribed:
		if s.hub.voice.last(e) && down(n.asked, e.Channel) && c != nil && c.asked {
			c.confirmed()
		}
	case redisconn.Unsubscribed:
		if s.hub.voice.last(e) && n.left[e.Channel] > 0 {
			down(n.left, e.Channel)
		} else if e.Sharded && c != nil {
			s.moved(c)
		}
	case redisconn.Received:
		if c != nil {
			c.wake(c.wakes(e.Message))
		}
	case redisconn.Broken:
		select {
		case n.broken <- e.Err:
		default:
		}
	}
}

// moved: the server has given the channel's slot away. Until the table knows, nobody can
// say where to; the next round asks. The mutex is held.
func (s *station) moved(c *channel) {
	c.live = false
	s.hub.client.Refresh()
	s.hub.wg.Go(func() {
		s.pause(shortestBackoff + redisconn.RefreshGap)
		s.rehome()
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		if s.channels[c.name] == c && !c.live {
			c.asked = false // it has come back, or the server will say where it is
			s.notify()
		}
	})
}

// down counts down, and reports whether nothing is left.
func down(counts map[string]int, name string) bool {
	counts[name]--
	if counts[name] > 0 {
		return false
	}
	delete(counts, name)
	return true
}

// failUnarmed gives those up who wait for a connection that can't be had.
func (s *station) failUnarmed(err error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, c := range s.channels {
		c.fail(err)
	}
}
