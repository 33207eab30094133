package distlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// stormy is a backend where requests, answers and time are lost, and that notices two calls
// for one Owner at once. Its holds may live as long as a session.
type stormy struct {
	*memlock.Backend
	t    testing.TB
	caps driver.Caps

	mu   sync.Mutex
	busy map[string]bool // by Owner
	own  map[string]bool // holds that end by their own TTL
}

func newStormy(t testing.TB, store *memlock.Store, caps func(*driver.Caps)) *stormy {
	s := &stormy{Backend: store.Connect(), t: t, busy: map[string]bool{}, own: map[string]bool{}}
	s.caps = s.Backend.Caps()
	caps(&s.caps)
	return s
}

func (s *stormy) Caps() driver.Caps { return s.caps }

// call makes a call for some Owners, or not, or loses its answer or sits on it.
func (s *stormy) call(ctx context.Context, owners []string, f func() error) error {
	s.begin(owners)
	defer s.end(owners)
	switch rand.N(20) {
	case 0:
		return errNetwork
	case 1:
		f()
		return errNetwork
	case 2:
		f()
		<-ctx.Done()
		return ctx.Err()
	case 3:
		time.Sleep(rand.N(20 * time.Millisecond))
	}
	return f()
}

func (s *stormy) begin(owners []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range owners {
		if s.busy[o] {
			s.t.Errorf("two calls at once for owner %s", o)
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

// lasting is r for as long as it is going to live without a renewal.
func (s *stormy) lasting(r driver.Request) driver.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[r.Owner] = !s.caps.Session || s.caps.Fixed && r.Fixed
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

func (s *stormy) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = s.call(ctx, []string{r.Owner}, func() (err error) {
		g, err = s.Backend.Acquire(context.Background(), s.lasting(r))
		g.TTL = r.TTL
		return err
	})
	return g, err
}

func (s *stormy) AcquireAll(ctx context.Context, rs []driver.Request) (grants []driver.Grant, err error) {
	var owners []string
	var lasting []driver.Request
	for _, r := range rs {
		owners, lasting = append(owners, r.Owner), append(lasting, s.lasting(r))
	}
	err = s.call(ctx, owners, func() (err error) {
		grants, err = s.Backend.AcquireAll(context.Background(), lasting)
		for i := range grants {
			grants[i].TTL = rs[i].TTL
		}
		return err
	})
	return grants, err
}

func (s *stormy) Renew(ctx context.Context, holds []driver.Hold) (errs []error) {
	var owners []string
	var renewed []driver.Hold
	for _, h := range holds {
		owners, renewed = append(owners, h.Owner), append(renewed, s.renewed(h))
	}
	err := s.call(ctx, owners, func() error {
		errs = s.Backend.Renew(context.Background(), renewed)
		return nil
	})
	if err != nil {
		return allErrors(holds, err)
	}
	return errs
}

func (s *stormy) Release(ctx context.Context, h driver.Hold) error {
	return s.call(ctx, []string{h.Owner}, func() error { return s.Backend.Release(context.Background(), h) })
}
