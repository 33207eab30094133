package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/examples/internal/story"
)

// Leader is three hosts of which one leads, for as long as it can.
//
// When the leader's cable is cut it can't renew its lock, and can't be notified that it has lost it.
// That isn't needed: its term has a deadline, counted from before the last answered renewal, and the
// context of its work ends then. Another host is elected a little later, never before.
//
// The next leader is stopped, as for an upgrade. It resigns, and the third host leads at once.

// while is how long a leader leads before the next event.
const while = 200 * time.Millisecond

// serveTerm is the work of one host at a time. Everything it calls gets ctx and ends with the term. Work
// that can't be cancelled gets distlock.Fence(ctx), and refuses the fences of older terms.
func serveTerm(ctx context.Context, h *story.Host, c *chronicle) error {
	t := c.begin(h, distlock.FromContext(ctx))
	<-ctx.Done()
	c.end(t, context.Cause(ctx))
	return nil
}

// simulate lets three hosts campaign, cuts the first leader's cable, stops the second leader, and
// returns the terms.
func simulate(ctx context.Context, s *story.Story) ([]*term, error) {
	hosts, err := s.Hosts(3)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	c := &chronicle{begun: make(chan *term, 10)}
	stop, over := map[*story.Host]func(){}, make(chan error, len(hosts))
	for _, h := range hosts {
		working, cancel := context.WithCancel(ctx)
		stop[h] = cancel
		go func() {
			over <- h.Election("leader").Lead(working, func(ctx context.Context) error { return serveTerm(ctx, h, c) })
		}()
	}

	err = c.play(ctx, stop)
	end()
	for range hosts {
		if e := <-over; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	return c.terms, err
}

// play cuts the first leader's cable, stops the second leader, and waits for the third.
func (c *chronicle) play(ctx context.Context, stop map[*story.Host]func()) error {
	first, err := c.next(ctx)
	if err != nil {
		return err
	}
	first.host.Say("has its cable cut")
	first.host.Unplug()

	second, err := c.next(ctx)
	if err != nil {
		return err
	}
	first.host.Plug()
	second.host.Say("is asked to stop")
	stop[second.host]()

	_, err = c.next(ctx)
	return err
}

// next returns the next term, after a while.
func (c *chronicle) next(ctx context.Context) (*term, error) {
	select {
	case t := <-c.begun:
		time.Sleep(while)
		return t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

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
