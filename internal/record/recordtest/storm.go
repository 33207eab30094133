package recordtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/exclusion"
)

// Few is the divisor of the holds that a storm on a real server has to see at least: one that a slow machine does not end in its
// time is judged by what it saw.
const Few = 20

// Storm is clients that take, renew and release a few locks, die in the middle, and are cut off from the store.
type Storm struct {
	Clients, Names, Holds int
	TTL                   time.Duration
	Seed                  uint64

	// Open returns a client's backend, which counts time by now.
	Open func(client int, now func() time.Time) driver.Backend

	// Rates are the speeds of the clients' clocks, in turn; 1 if there are none.
	Rates []float64

	// Checker sees the holds, beside those of others; nil: one of the storm's own.
	Checker *exclusion.Checker

	// LateTrust is a defect: a hold is trusted from after the answer that granted or renewed it.
	LateTrust bool
}

// Run runs the storm until its checker has seen as many holds as it wants, or ctx ends, and returns the checker.
func (s *Storm) Run(ctx context.Context) *exclusion.Checker {
	s.Checker = cmp.Or(s.Checker, exclusion.New())
	var wg sync.WaitGroup
	for i := range s.Clients {
		c := &client{storm: s, who: fmt.Sprint("client ", i), random: rand.New(rand.NewPCG(s.Seed, uint64(i))), began: time.Now(), rate: 1}
		if len(s.Rates) > 0 {
			c.rate = s.Rates[i%len(s.Rates)]
		}
		c.backend = s.Open(i, c.now)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for ctx.Err() == nil && s.goesOn() {
				c.visit(ctx)
			}
			c.background.Wait()
		}()
	}
	wg.Wait()
	return s.Checker
}

func (s *Storm) goesOn() bool {
	holds, _ := s.Checker.Holds()
	return holds < s.Holds
}

// client is one process.
type client struct {
	storm      *Storm
	who        string
	backend    driver.Backend
	random     *rand.Rand
	began      time.Time
	rate       float64
	background sync.WaitGroup // releases
}

// now is the client's clock, which is faster or slower than the world's.
func (c *client) now() time.Time {
	return c.began.Add(time.Duration(float64(time.Since(c.began)) * c.rate))
}

// sleep sleeps for d by the client's clock.
func (c *client) sleep(d time.Duration) { time.Sleep(time.Duration(float64(d)/c.rate) + 1) }

func (c *client) upTo(d time.Duration) time.Duration {
	return time.Duration(c.random.Float64() * float64(d))
}

// call bounds a call, often by less than a bad network needs.
func (c *client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.storm.TTL/8+c.upTo(c.storm.TTL))
}

// visit takes a lock, unless that takes long, and ends it in one of many ways.
func (c *client) visit(ctx context.Context) {
	h := driver.Hold{
		Name:  fmt.Sprint("lock ", c.random.IntN(c.storm.Names)),
		Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: c.storm.TTL/2 + c.upTo(c.storm.TTL),
	}
	held := c.acquire(ctx, h)
	if held == nil {
		return
	}
	c.storm.Checker.Enter(c.who, held)
	switch x := c.random.Float64(); {
	case x < 0.1: // it dies, and what it has begun goes on until it may no longer
		c.outlive(held)
		return
	case x < 0.2: // it is cut off for long, and finds out late
		c.outlive(held)
		c.sleep(c.upTo(c.storm.TTL))
		if c.random.IntN(2) == 0 {
			c.renew(ctx, held)
		}
	case x < 0.5: // it is short
		c.sleep(c.upTo(c.storm.TTL / 20))
	default:
		c.work(ctx, held)
	}
	c.storm.Checker.Leave(held)
	c.release(ctx, h)
}

// acquire tries until it is granted or has had enough.
func (c *client) acquire(ctx context.Context, h driver.Hold) *held {
	unknown := false
	for range 1 + c.random.IntN(40) {
		call, cancel := c.call(ctx)
		start := c.now()
		g, err := c.backend.Acquire(call, driver.Request{Hold: h, Fences: 1 + uint64(c.random.IntN(3))})
		cancel()
		refusal := (*driver.HeldError)(nil)
		switch {
		case err == nil:
			new := &held{c: c, hold: h, fence: g.Fence}
			new.trust(start, g.TTL)
			return new
		case errors.As(err, &refusal):
			// As a rule at the very moment at which time alone may let it in.
			if pause := c.upTo(h.TTL / 4); refusal.Retry == 0 || pause < refusal.Retry {
				c.sleep(pause)
			} else {
				c.sleep(refusal.Retry)
			}
		default:
			unknown = unknown || !errors.Is(err, driver.ErrUnsent)
			c.sleep(c.upTo(h.TTL / 20))
		}
	}
	if unknown {
		c.release(ctx, h)
	}
	return nil
}

// work renews the hold for a while, or until it is lost.
func (c *client) work(ctx context.Context, h *held) {
	for until := c.now().Add(c.upTo(2 * c.storm.TTL)); c.now().Before(until) && h.Err() == nil; {
		c.sleep(c.upTo(h.hold.TTL / 2))
		if h.Err() == nil && !c.renew(ctx, h) {
			return
		}
	}
}

// renew reports false if the hold is lost as a fact.
func (c *client) renew(ctx context.Context, h *held) bool {
	call, cancel := c.call(ctx)
	defer cancel()
	start, live := c.now(), h.Err() == nil
	err := c.backend.Renew(call, []driver.Hold{h.hold})[0]
	if err == nil && live && h.Err() == nil {
		h.trust(start, h.hold.TTL)
	}
	return !errors.Is(err, driver.ErrLost)
}

// outlive goes on until the hold may no longer be trusted.
func (c *client) outlive(h *held) {
	for h.Err() == nil {
		c.sleep(h.until().Sub(c.now()))
	}
	c.storm.Checker.Leave(h)
}

// release releases in the background, until there is an answer. Some processes end before.
func (c *client) release(ctx context.Context, h driver.Hold) {
	tries := 1 + c.random.IntN(20)
	limits := make([]time.Duration, tries)
	for i := range limits {
		limits[i] = c.storm.TTL/8 + c.upTo(c.storm.TTL)
	}
	c.background.Add(1)
	go func() {
		defer c.background.Done()
		for _, limit := range limits {
			call, cancel := context.WithTimeout(ctx, limit)
			err := c.backend.Release(call, h)
			cancel()
			if err == nil || errors.Is(err, driver.ErrLost) {
				return
			}
			time.Sleep(limit / 10)
		}
	}()
}

// held is a hold as its holder sees it.
type held struct {
	c     *client
	hold  driver.Hold
	fence uint64

	mu  sync.Mutex
	end time.Time
}

func (h *held) trust(start time.Time, ttl time.Duration) {
	if h.c.storm.LateTrust {
		start = h.c.now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = start.Add(ttl)
}

func (h *held) until() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// Name, Fence and Err make held an exclusion.Hold.
func (h *held) Name() string  { return h.hold.Name }
func (h *held) Fence() uint64 { return h.fence }

// Err says whether the hold is over.
func (h *held) Err() error {
	if h.c.now().Before(h.until()) {
		return nil
	}
	return context.DeadlineExceeded
}
