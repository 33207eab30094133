package main

import (
	"sync"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/examples/internal/story"
)

// term is the time during which one host led.
type term struct {
	host   *story.Host
	number int
	lease  *distlock.Lease
	began  time.Time
	cause  error // why it ended
	early  bool  // it began before the previous term had ended
}

// chronicle records all terms in their order.
type chronicle struct {
	mu    sync.Mutex
	terms []*term
	begun chan *term
}

func (c *chronicle) begin(h *story.Host, lease *distlock.Lease) *term {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &term{host: h, number: len(c.terms) + 1, lease: lease, began: time.Now()}
	if n := len(c.terms); n > 0 {
		t.early = c.terms[n-1].lease.Err() == nil
	}
	c.terms = append(c.terms, t)
	h.Say("leads: term %d", t.number)
	c.begun <- t
	return t
}

func (c *chronicle) end(t *term, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.cause = cause
	t.host.Say("steps down after %.2f s: %v", time.Since(t.began).Seconds(), cause)
}
