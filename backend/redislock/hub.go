package redislock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
)

// A subscription is kept for a while after its last watch has left: a lock that is
// fought for is watched again at once. Then the connection is kept for a while.
const (
	round           = 500 * time.Millisecond
	keepChannel     = 2  // rounds
	keepConnection  = 20 // rounds
	shortestBackoff = 20 * time.Millisecond
	longestBackoff  = time.Second
)

// hub shares one connection for subscriptions among all watches.
//
// Watches only change what is wanted. One goroutine, which lives while anything is,
// makes the connection agree with it: so commands for one channel are sent in order,
// and a new connection needs no care of its own.
type hub struct {
	client  client
	ctx     context.Context // ends with the hub
	cancel  context.CancelFunc
	changed chan struct{} // holds a signal that something is wanted
	wg      sync.WaitGroup
	watches atomic.Int64

	mu       sync.Mutex
	channels map[string]*channel
	owners   map[string]*watch
	session  *session
	running  bool
	idle     int // rounds without channels
}

// session is one connection.
type session struct {
	// asked counts subscriptions that are not confirmed. A channel that was given up
	// and wanted again must not take the first one's confirmation for the second's.
	asked  map[string]int
	broken chan error
}

func newHub(c client) *hub {
	h := &hub{
		client:   c,
		changed:  make(chan struct{}, 1),
		channels: map[string]*channel{},
		owners:   map[string]*watch{},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// close ends the connection and the goroutine; those who wait to be armed learn it.
func (h *hub) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.wg.Wait()
	h.failUnarmed(driver.ErrClosed)
}

func (h *hub) add(w *watch, name string, wakes func(string) int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return driver.ErrClosed
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name, wakes: wakes}
		h.channels[name] = c
	}
	w.channel = c
	c.watches = append(c.watches, w)
	c.idle, h.idle = 0, 0
	h.owners[w.owner] = w
	h.watches.Add(1)
	if c.live {
		w.arm(nil)
		return nil
	}
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	}
	h.notify()
	return nil
}

func (h *hub) remove(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := w.channel
	c.watches = slices.DeleteFunc(c.watches, func(x *watch) bool { return x == w })
	if h.owners[w.owner] == w {
		delete(h.owners, w.owner)
	}
	h.watches.Add(-1)
	if w.woken {
		c.wake(1)
	}
}

// answered: owner has asked since it was woken, so that the message is used up.
func (h *hub) answered(owner string) {
	if h.watches.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.owners[owner]; w != nil && len(w.ready) == 0 {
		w.woken = false
	}
}

func (h *hub) notify() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// run serves one connection after the other, until nothing is wanted.
func (h *hub) run() {
	backoff := shortestBackoff
	for !h.finished() {
		s := h.newSession()
		l, err := h.listen(s)
		if err == nil {
			backoff = shortestBackoff
			err = h.serve(s, l)
			l.close()
		}
		if err != nil {
			// Those who have waited since before are not kept waiting for a server that
			// can't be reached or refuses.
			h.failUnarmed(err)
			h.pause(backoff)
			backoff = min(2*backoff, longestBackoff)
		}
	}
}

func (h *hub) listen(s *session) (listener, error) {
	at, err := h.client.at(h.ctx, "")
	if err != nil {
		return nil, err
	}
	return at.listen(h.ctx, func(e event) { h.on(s, e) })
}

func (h *hub) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-h.ctx.Done():
	}
}

// finished is where the goroutine decides to end: nothing is wanted any more.
func (h *hub) finished() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted() {
		h.tidy()
		return false
	}
	h.running, h.session = false, nil
	return true
}

func (h *hub) newSession() *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.channels {
		c.asked, c.live = false, false
	}
	h.session = &session{asked: map[string]int{}, broken: make(chan error, 1)}
	return h.session
}

// serve keeps the connection in agreement with what is wanted; nil: nothing is.
func (h *hub) serve(s *session, l listener) error {
	tick := time.NewTicker(round)
	defer tick.Stop()
	for {
		if err := h.sync(s, l); err != nil {
			return err
		}
		select {
		case <-h.changed:
		case err := <-s.broken:
			return err
		case <-h.ctx.Done():
			return nil
		case <-tick.C:
			h.mu.Lock()
			h.tidy()
			wanted := h.wanted()
			h.mu.Unlock()
			if !wanted {
				return nil // and run decides, with this connection closed
			}
		}
	}
}

// wanted: there is a reason to be connected. The mutex is held.
func (h *hub) wanted() bool {
	return h.ctx.Err() == nil && (len(h.channels) > 0 || h.idle < keepConnection)
}

// sync sends what is missing.
func (h *hub) sync(s *session, l listener) error {
	h.mu.Lock()
	var more, less []string
	for name, c := range h.channels {
		switch {
		case c.idle > keepChannel:
			delete(h.channels, name)
			if c.asked {
				less = append(less, name)
			}
		case !c.asked:
			c.asked = true
			s.asked[name]++
			more = append(more, name)
		}
	}
	h.mu.Unlock()
	if len(less) > 0 {
		if err := l.unsubscribe(h.ctx, less); err != nil {
			return err
		}
	}
	if len(more) > 0 {
		return l.subscribe(h.ctx, more)
	}
	return nil
}

// tidy counts a round for what is not used. The mutex is held.
func (h *hub) tidy() {
	for _, c := range h.channels {
		if len(c.watches) == 0 {
			c.idle++
		}
	}
	if len(h.channels) == 0 {
		h.idle++
	}
}

// on is called by the connection of session s.
func (h *hub) on(s *session, e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return
	}
	c := h.channels[e.channel]
	switch e.kind {
	case confirmed:
		s.asked[e.channel]--
		if s.asked[e.channel] <= 0 {
			delete(s.asked, e.channel)
			if c != nil && c.asked {
				c.confirmed()
			}
		}
	case received:
		if c != nil {
			c.wake(c.wakes(e.message))
		}
	case broken:
		select {
		case s.broken <- e.err:
		default:
		}
	}
}

// failUnarmed gives those up who wait for a connection that can't be had.
func (h *hub) failUnarmed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.channels {
		for _, w := range c.watches {
			w.arm(err)
		}
	}
}
