package redisconn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// A subscription is kept for a while after its last user has left: a channel is often used again at
// once. Then the connection is kept for a while.
const (
	checkInterval       = 500 * time.Millisecond
	keepChannel         = 2  // intervals
	keepConnection      = 20 // intervals
	minReconnectBackoff = 20 * time.Millisecond
	maxReconnectBackoff = time.Second
)

// confirmTimeout is how long a server may take to confirm a subscription, or to give another sign of
// life, before a new connection is made.
const confirmTimeout = 2 * time.Second

var (
	errUnconfirmed = errors.New("the connection for subscriptions does not answer")
	errOtherMode   = errors.New("messages are sent in another way than it looked at first")
)

// Subscriptions shares connections for subscriptions: one for each server. A channel is subscribed
// on the server that has its key, wherever that moves.
//
// Join and Leave only change the channels that are wanted. A subscriber for each server makes its
// connection agree with them.
type Subscriptions struct {
	client   *Client
	pubsub   *PubSub
	interval time.Duration
	ctx      context.Context // ends with Subscriptions
	cancel   context.CancelFunc
	wg       wait.Group

	mu          sync.Mutex
	channels    map[string]*channel
	subscribers map[*Server]*subscriber // whose goroutine lives
}

// ChannelHandler is notified of what happens to a channel. It must not block.
type ChannelHandler interface {
	// Subscribed is called once the server has confirmed the subscription, and again after a new
	// connection was needed: then messages may have been missed.
	Subscribed()

	Received(message string)

	// Failed is called if the server can't be reached or refuses. The subscription is tried again.
	Failed(err error)
}

// channel is one subscription. All but its name and key is guarded by the mutex of Subscriptions.
type channel struct {
	name, key  string
	handler    ChannelHandler
	users      int
	subscriber *subscriber
	requested  bool // on the present connection
	confirmed  bool
	idle       int // intervals without users
}

// NewSubscriptions returns the subscriptions of a client. They have no connection yet.
func NewSubscriptions(c *Client, p *PubSub) *Subscriptions {
	s := &Subscriptions{
		client:      c,
		pubsub:      p,
		interval:    checkInterval,
		channels:    map[string]*channel{},
		subscribers: map[*Server]*subscriber{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *Subscriptions) sharded() bool { return s.pubsub.Mode() == PubSubSharded }

// Cancel begins to end the connections and goroutines, without waiting for them.
func (s *Subscriptions) Cancel() { s.cancel() }

// Close ends the connections and goroutines, and fails all channels.
func (s *Subscriptions) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	handlers := handlersOf(s.channels)
	s.mu.Unlock()
	for _, h := range handlers {
		h.Failed(driver.ErrClosed)
	}
}

// Join adds a user to a channel, which is published on the server that has key. h replaces the
// channel's earlier handler. Join reports whether the server has confirmed the subscription already.
func (s *Subscriptions) Join(ctx context.Context, key, name string, h ChannelHandler) (confirmed bool, err error) {
	at, err := s.client.At(ctx, key)
	if err != nil {
		return false, err
	}
	if _, err := s.pubsub.Detect(ctx, s.client); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false, driver.ErrClosed
	}
	c := s.channels[name]
	if c == nil {
		c = &channel{name: name, key: key}
		s.channels[name] = c
		s.assign(c, at)
	}
	c.handler = h
	c.users++
	c.idle, c.subscriber.idle = 0, 0
	if !c.confirmed {
		c.subscriber.changed.Notify()
	}
	return c.confirmed, nil
}

// Leave removes a user from a channel. A channel without users is kept for a while if it may soon be
// used again.
func (s *Subscriptions) Leave(name string, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[name]
	c.users--
	if c.users == 0 && !keep {
		s.drop(c)
		c.subscriber.changed.Notify()
	}
}

// assign gives a channel to a server's subscriber. The mutex is held.
func (s *Subscriptions) assign(c *channel, at *Server) {
	to := s.subscribers[at]
	if to == nil {
		to = &subscriber{all: s, server: at, changed: wait.NewSignal(), channels: map[string]*channel{}}
		s.subscribers[at] = to
		s.wg.Go(to.run)
	}
	if c.subscriber != nil && c.subscriber != to {
		c.subscriber.remove(c)
	}
	c.subscriber, c.requested, c.confirmed = to, false, false
	to.channels[c.name] = c
	to.idle = 0
	to.changed.Notify()
}

// drop forgets a channel without users. The mutex is held.
func (s *Subscriptions) drop(c *channel) {
	delete(s.channels, c.name)
	c.subscriber.remove(c)
}

func handlersOf(channels map[string]*channel) []ChannelHandler {
	list := make([]ChannelHandler, 0, len(channels))
	for _, c := range channels {
		list = append(list, c.handler)
	}
	return list
}

// subscriber is the connection to one server. One goroutine, which lives while anything is wanted of
// the server, makes the connection agree with that. So commands for one channel are sent in order,
// and a new connection needs no special care.
//
// The mutex of Subscriptions guards everything but the Go channel.
type subscriber struct {
	all     *Subscriptions
	server  *Server
	changed wait.Signal // of the wanted channels

	channels map[string]*channel
	removed  []string // to be unsubscribed
	current  *subscriberConn
	idle     int // intervals without channels
}

// subscriberConn is one connection of a subscriber.
type subscriberConn struct {
	sharded bool // all its subscriptions

	// pending counts subscriptions that are not confirmed, and leaving those whose end is not. A
	// channel that was left and joined again must not take the first confirmation for the second.
	pending, leaving map[string]int
	unanswered       time.Time // since when an answer is due; zero: none is
	broken           chan error
}

// run serves one connection after the other, until nothing is wanted.
func (s *subscriber) run() {
	for failures := 0; !s.finished(); {
		conn := s.newConn()
		l, err := s.server.Listen(s.all.ctx, func(e Event) { s.handle(conn, e) })
		if err == nil {
			failures = 0
			err = s.serve(conn, l)
			l.Close()
		}
		if err != nil {
			s.fail(err)
			s.all.client.Refresh()
			wait.Sleep(s.all.ctx, wait.Backoff(failures, minReconnectBackoff, maxReconnectBackoff))
			failures++
			s.reassign()
		}
	}
}

// finished reports whether nothing is wanted any more. Then the goroutine ends.
func (s *subscriber) finished() bool {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.wanted() {
		s.countIdle()
		return false
	}
	s.current = nil
	if s.all.subscribers[s.server] == s {
		delete(s.all.subscribers, s.server)
	}
	return true
}

func (s *subscriber) newConn() *subscriberConn {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	for _, c := range s.channels {
		c.requested, c.confirmed = false, false
	}
	s.removed = nil
	s.current = &subscriberConn{sharded: s.all.sharded(), pending: map[string]int{}, leaving: map[string]int{}, broken: make(chan error, 1)}
	return s.current
}

// serve keeps the connection in agreement with the wanted channels. It returns nil if there are none.
func (s *subscriber) serve(conn *subscriberConn, l *Listener) error {
	tick := time.NewTicker(s.all.interval)
	defer tick.Stop()
	for {
		if err := s.sync(conn, l); err != nil {
			return err
		}
		select {
		case <-s.changed:
		case err := <-conn.broken:
			return err
		case <-s.all.ctx.Done():
			return nil
		case <-tick.C:
			s.reassign()
			s.all.mu.Lock()
			s.countIdle()
			wanted := s.wanted()
			silent := !conn.unanswered.IsZero() && time.Since(conn.unanswered) > confirmTimeout
			s.all.mu.Unlock()
			if !wanted {
				return nil // and run decides, with this connection closed
			}
			if silent {
				return errUnconfirmed
			}
		}
	}
}

// sync sends the commands that are missing.
func (s *subscriber) sync(conn *subscriberConn, l *Listener) error {
	if conn.sharded != s.all.sharded() {
		return errOtherMode
	}
	s.all.mu.Lock()
	for _, c := range s.channels {
		if c.idle > keepChannel {
			s.all.drop(c)
		}
	}
	removed := s.removed
	s.removed = nil
	for _, name := range removed {
		conn.leaving[name]++
	}
	var added []string
	for name, c := range s.channels {
		if !c.requested {
			c.requested = true
			conn.pending[name]++
			added = append(added, name)
		}
	}
	if len(added) > 0 && conn.unanswered.IsZero() {
		conn.unanswered = time.Now()
	}
	s.all.mu.Unlock()
	if err := inGroups(conn.sharded, removed, func(names []string) error { return l.Unsubscribe(conn.sharded, names) }); err != nil {
		return err
	}
	return inGroups(conn.sharded, added, func(names []string) error { return l.Subscribe(conn.sharded, names) })
}

// inGroups calls send with names that one command may have: all of them, or a single one if they are
// sharded, since they may lie in several slots.
func inGroups(sharded bool, names []string, send func(names []string) error) error {
	size := max(len(names), 1)
	if sharded {
		size = 1
	}
	for group := range slices.Chunk(names, size) {
		if err := send(group); err != nil {
			return err
		}
	}
	return nil
}

// reassign gives away the channels whose key another server has now.
func (s *subscriber) reassign() {
	at := func(key string) (to *Server, moved bool) {
		ctx, cancel := context.WithTimeout(s.all.ctx, checkInterval)
		defer cancel()
		to, err := s.all.client.At(ctx, key)
		return to, err == nil && to != s.server
	}
	if !s.all.client.Slotted() {
		if _, moved := at(""); !moved {
			return // all keys are there
		}
	}
	s.all.mu.Lock()
	keys := map[string]string{}
	for name, c := range s.channels {
		keys[name] = c.key
	}
	s.all.mu.Unlock()
	for name, key := range keys {
		to, moved := at(key)
		if !moved {
			continue
		}
		s.all.mu.Lock()
		if c := s.channels[name]; c != nil && s.all.ctx.Err() == nil {
			s.all.assign(c, to)
		}
		s.all.mu.Unlock()
	}
}

// wanted reports whether there is a reason to be connected. The mutex is held.
func (s *subscriber) wanted() bool {
	return s.all.ctx.Err() == nil && (len(s.channels) > 0 || s.idle < keepConnection)
}

// remove gives up a channel. The mutex is held.
func (s *subscriber) remove(c *channel) {
	delete(s.channels, c.name)
	if c.requested {
		s.removed = append(s.removed, c.name)
	}
}

// countIdle counts an interval for what is not used. The mutex is held.
func (s *subscriber) countIdle() {
	for _, c := range s.channels {
		if c.users == 0 {
			c.idle++
		}
	}
	if len(s.channels) == 0 {
		s.idle++
	}
}

// handle is called with the events of a connection, one after the other.
func (s *subscriber) handle(conn *subscriberConn, e Event) {
	if notify := s.update(conn, e); notify != nil {
		notify()
	}
}

// update returns what the channel's handler is to be notified of, without the mutex; nil if nothing.
func (s *subscriber) update(conn *subscriberConn, e Event) (notify func()) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.current != conn {
		return nil
	}
	conn.unanswered = time.Time{}
	c := s.channels[e.Channel]
	switch e.Kind {
	case Subscribed:
		if countDown(conn.pending, e.Channel) && c != nil && c.requested {
			c.confirmed = true
			return c.handler.Subscribed
		}
	case Unsubscribed:
		if conn.leaving[e.Channel] > 0 {
			countDown(conn.leaving, e.Channel)
		} else if e.Sharded && c != nil {
			s.slotMoved(c)
		}
	case Received:
		if c != nil {
			h := c.handler
			return func() { h.Received(e.Message) }
		}
	case Broken:
		select {
		case conn.broken <- e.Err:
		default:
		}
	}
	return nil
}

// slotMoved is called when the server has given the channel's slot away. The routes do not say where
// to yet; they are looked up again. The mutex is held.
func (s *subscriber) slotMoved(c *channel) {
	c.confirmed = false
	s.all.client.Refresh()
	s.all.wg.Go(func() {
		wait.Sleep(s.all.ctx, minReconnectBackoff+refreshGap)
		s.reassign()
		s.all.mu.Lock()
		defer s.all.mu.Unlock()
		if s.channels[c.name] == c && !c.confirmed {
			c.requested = false // the slot has come back, or the server will say where it is
			s.changed.Notify()
		}
	})
}

// countDown reports whether nothing is left.
func countDown(counts map[string]int, name string) bool {
	counts[name]--
	if counts[name] > 0 {
		return false
	}
	delete(counts, name)
	return true
}

// fail notifies the handlers: users must not wait for a server that can't be reached or refuses.
func (s *subscriber) fail(err error) {
	s.all.mu.Lock()
	handlers := handlersOf(s.channels)
	s.all.mu.Unlock()
	for _, h := range handlers {
		h.Failed(err)
	}
}
