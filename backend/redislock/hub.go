package redislock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// A subscription is kept for a while after its last watch has left: a lock that is
// fought for is watched again at once. Then the connection is kept for a while.
const (
	defaultRound    = 500 * time.Millisecond
	keepChannel     = 2  // rounds
	keepConnection  = 20 // rounds
	shortestBackoff = 20 * time.Millisecond
	longestBackoff  = time.Second
)

// hub shares connections for subscriptions among all watches: one for each server. A
// channel is heard on the server that has its lock, wherever that moves.
//
// Watches only change what is wanted. A station for each server makes its connection
// agree with it.
type hub struct {
	client  redisconn.Client
	voice   *voice
	round   time.Duration
	ctx     context.Context // ends with the hub
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	watches atomic.Int64

	mu       sync.Mutex
	channels map[string]*channel
	owners   map[string]*watch
	stations map[redisconn.Server]*station // whose goroutine lives
}

func newHub(c redisconn.Client, v *voice) *hub {
	h := &hub{
		client:   c,
		voice:    v,
		round:    defaultRound,
		channels: map[string]*channel{},
		owners:   map[string]*watch{},
		stations: map[redisconn.Server]*station{},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// close ends the connections and goroutines; those who wait to be armed learn it.
func (h *hub) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.wg.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.channels {
		c.fail(driver.ErrClosed)
	}
}

// add lets w listen to a topic of the lock key.
func (h *hub) add(ctx context.Context, w *watch, key string, t topic) error {
	at, err := h.client.At(ctx, key)
	if err != nil {
		return err
	}
	if err := h.voice.learn(ctx, h.client); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return driver.ErrClosed
	}
	h.join(w, key, t, at)
	h.owners[w.owner] = w
	h.watches.Add(1)
	if w.channel.live {
		w.arm(nil)
	}
	return nil
}

// join adds w to a topic's channel. The mutex is held.
func (h *hub) join(w *watch, key string, t topic, at redisconn.Server) {
	c := h.channels[t.name]
	if c == nil {
		c = &channel{topic: t, key: key}
		h.channels[t.name] = c
		h.settle(c, at)
	}
	w.channel = c
	c.watches = append(c.watches, w)
	c.idle, c.at.idle = 0, 0
	if !c.live {
		c.at.notify()
	}
}

// settle gives a channel to a server's station. The mutex is held.
func (h *hub) settle(c *channel, at redisconn.Server) {
	s := h.stations[at]
	if s == nil {
		s = &station{hub: h, server: at, changed: make(chan struct{}, 1), channels: map[string]*channel{}}
		h.stations[at] = s
		h.wg.Go(s.run)
	}
	if c.at != nil && c.at != s {
		c.at.leave(c)
	}
	c.at, c.asked, c.live = s, false, false
	s.channels[c.name] = c
	s.idle = 0
	s.notify()
}

// forget drops a channel that nobody uses any more. The mutex is held.
func (h *hub) forget(c *channel) {
	delete(h.channels, c.name)
	c.at.leave(c)
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
	if w.alone && len(c.watches) == 0 && h.channels[c.name] == c {
		h.forget(c)
		c.at.notify()
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
