package server

import (
	"encoding/hex"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/wait"
)

const (
	newsTime = time.Minute // for which news wait for a client that is not connected
	maxNews  = 1000        // that wait
)

// mailboxes has the news of each client, by its secret. The zero value is ready, and safe for concurrent use.
type mailboxes struct {
	mu sync.Mutex
	m  map[string]*mailbox
}

// mailbox has the news that its client has not got yet.
type mailbox struct {
	unread  []letter
	arrived wait.Signal
	readers int
}

type letter struct {
	event string
	news  httpwire.News
	at    time.Time
}

// post adds news for a client.
func (b *mailboxes) post(client, event string, h driver.Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.open(client)
	m.unread = append(m.unread, letter{event, httpwire.News{Name: h.Name, Owner: h.Owner}, time.Now()})
	if n := len(m.unread); n > maxNews {
		m.unread = slices.Delete(m.unread, 0, n-maxNews)
	}
	m.arrived.Notify()
	b.forget()
}

// open returns a client's mailbox. The caller has locked mu.
func (b *mailboxes) open(client string) *mailbox {
	if b.m == nil {
		b.m = map[string]*mailbox{}
	}
	m := b.m[client]
	if m == nil {
		m = &mailbox{arrived: wait.NewSignal()}
		b.m[client] = m
	}
	return m
}

// forget deletes the mailboxes whose news nobody has read in time. The caller has locked mu.
func (b *mailboxes) forget() {
	for client, m := range b.m {
		if m.readers == 0 && (len(m.unread) == 0 || time.Since(m.unread[len(m.unread)-1].at) > newsTime) {
			delete(b.m, client)
		}
	}
}

func (b *mailboxes) enter(client string) *mailbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.open(client)
	m.readers++
	return m
}

func (b *mailboxes) leave(m *mailbox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.readers--
	b.forget()
}

// take returns the unread news.
func (b *mailboxes) take(m *mailbox) []letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := m.unread
	m.unread = nil
	return all
}

// subscribe lets r's client have the news of its hold, if it wants any.
func (c *call) subscribe(r *driver.Request, revocable bool) error {
	client := c.r.Header.Get(httpwire.ClientHeader)
	if client == "" {
		if revocable {
			return invalid("revocable needs the header %s, and a client that reads /v1/news with it", httpwire.ClientHeader)
		}
		return nil
	}
	if !isSecret(client) {
		return errSecret
	}
	boxes, h := &c.s.mailboxes, r.Hold
	r.OnLost = func() { boxes.post(client, httpwire.EventLost, h) }
	if revocable {
		if !c.s.caps.Revocable.Has(r.Mode) {
			return problem(http.StatusNotImplemented, httpwire.Unsupported, "the backend can't ask the holder of a lock of mode %v", r.Mode)
		}
		r.OnRevoke = func() { boxes.post(client, httpwire.EventAsked, h) }
	}
	return nil
}

var errSecret = invalid("%s is not a secret: want at least %d random bytes in hex", httpwire.ClientHeader, httpwire.SecretBytes)

func isSecret(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) >= httpwire.SecretBytes && len(b) <= 64
}

// news sends a client the news of its holds.
func (c *call) news() error {
	client := c.r.Header.Get(httpwire.ClientHeader)
	if !isSecret(client) {
		return errSecret
	}
	ctx, end, err := c.stream()
	if err != nil {
		return err
	}
	defer end()
	m := c.s.mailboxes.enter(client)
	defer c.s.mailboxes.leave(m)
	e := c.events()
	return e.forward(ctx, httpwire.EventHello, m.arrived, func() error {
		for _, l := range c.s.mailboxes.take(m) {
			if err := e.send(l.event, l.news); err != nil {
				return err
			}
		}
		return nil
	})
}
