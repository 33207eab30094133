package distlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/lives"
)

// stormy is a backend where requests, answers and time are lost, where requests land after
// their caller has gone, and that notices two calls for one Owner at once. Its holds may live
// as long as a session.
type stormy struct {
	*memlock.Backend
	w     *world
	spans bool // grants have more than one fence
	caps  driver.Caps
	lives lives.Lives
	sets  string // the requests that set a life, as no driver may, so that a late one shortens it: "renewals", "attempts"

	mu   sync.Mutex
	busy map[string]bool // by Owner
	own  map[string]bool // holds that end by their own TTL
}

func newStormy(w *world, caps func(*driver.Caps)) *stormy {
	s := &stormy{Backend: w.store.Connect(), w: w, busy: map[string]bool{}, own: map[string]bool{}}
	s.caps = s.Backend.Caps()
	caps(&s.caps)
	return s
}

func (s *stormy) Caps() driver.Caps { return s.caps }

// latest is how late a request may land.
const latest = 10 * time.Second

// call makes a call for some Owners, or not, or loses its answer or delays it. One request in
// twenty lands late: after its caller got an unknown outcome, and perhaps beside
// or after later calls for the same Owner.
func call[T any](ctx context.Context, s *stormy, owners []string, now, late func() (T, error)) (none T, err error) {
	s.begin(owners)
	defer s.end(owners)
	switch rand.N(20) {
	case 0:
		return none, errNetwork
	case 1:
		now()
		return none, errNetwork
	case 2:
		now()
		<-ctx.Done()
		return none, ctx.Err()
	case 3:
		time.Sleep(rand.N(20 * time.Millisecond))
	case 4:
		time.AfterFunc(rand.N(latest), func() { late() })
		if rand.N(2) == 0 {
			return none, errNetwork
		}
		<-ctx.Done()
		return none, ctx.Err()
	}
	return now()
}

func (s *stormy) begin(owners []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range owners {
		if s.busy[o] {
			s.w.errorf("two calls at once for owner %s", o)
		}
		s.busy[o] = true
	}
}

func (s *stormy) end(owners []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range owners {
		delete(s.busy, o)
	}
}

// endless is for how long a session lives: longer than a storm.
const endless = time.Hour

// lasting returns r with the TTL for which it lives without a renewal.
func (s *stormy) lasting(r driver.Request) driver.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[r.Owner] = !s.caps.Session
	if !s.own[r.Owner] {
		r.TTL = endless
	}
	return r
}

func (s *stormy) renewed(h driver.Hold) driver.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.own[h.Owner] {
		h.TTL = endless
	}
	return h
}

// acquire is an attempt. One that lands late takes what is free for the TTL, in a session too:
// it may land after the release, and a driver ends such a hold.
func (s *stormy) acquire(r driver.Request, ttl time.Duration) (driver.Grant, error) {
	if !s.spans {
		r.Fences = 1
	}
	g, err := s.Backend.Acquire(context.Background(), r)
	g.TTL = ttl
	s.live(r.Hold, s.sets == "attempts", err)
	return g, err
}

func (s *stormy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return call(ctx, s, []string{r.Owner},
		func() (driver.Grant, error) { return s.acquire(s.lasting(r), r.TTL) },
		func() (driver.Grant, error) { return s.acquire(r, r.TTL) })
}

func (s *stormy) Renew(ctx context.Context, holds []driver.Hold) []error {
	var owners []string
	for _, h := range holds {
		owners = append(owners, h.Owner)
	}
	now := func() ([]error, error) {
		var renewed []driver.Hold
		for _, h := range holds {
			renewed = append(renewed, s.renewed(h))
		}
		return s.renew(renewed), nil
	}
	errs, err := call(ctx, s, owners, now, func() ([]error, error) { return s.renew(holds), nil })
	if err != nil {
		return allErrors(holds, err)
	}
	return errs
}

func (s *stormy) renew(holds []driver.Hold) []error {
	errs := s.Backend.Renew(context.Background(), holds)
	for i, h := range holds {
		s.live(h, s.sets == "renewals", errs[i])
	}
	return errs
}

// live follows the life of h, which a request has prolonged if err is nil, if there are requests that set one.
func (s *stormy) live(h driver.Hold, sets bool, err error) {
	if s.sets != "" && err == nil {
		s.lives.Ask(s.Backend, h, sets)
	}
}

func (s *stormy) Release(ctx context.Context, h driver.Hold) error {
	release := func() (struct{}, error) { return struct{}{}, s.Backend.Release(context.Background(), h) }
	_, err := call(ctx, s, []string{h.Owner}, release, release)
	return err
}
