package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

// Token is a fleet that shares one access token of another company's service. The token expires after a
// while, and a host that is refused renews it with the refresh token. That returns a new pair of tokens
// and voids the old pair. A refresh token that is used a second time looks like a theft: the service
// then voids all tokens.
//
// All hosts are refused at the same moment. Without a lock each of them refreshes, the second one with a
// token that the first has voided, and the fleet is logged out. Under a lock the first one refreshes; the
// others look again once they have the lock, see the new token, and use it.

const hosts = 5

// refresh replaces the tokens that were refused, and returns the new ones.
func refresh(_ context.Context, h *story.Host, f *fleet, refused tokens) (tokens, error) {
	fresh, err := f.service.refresh(refused.refresh)
	if err != nil {
		return tokens{}, err
	}
	f.save(fresh)
	h.Say("has refreshed the token: %s", fresh.access)
	return fresh, nil
}

// refreshLocked calls refresh on one host at a time, and only if no host has done it.
func refreshLocked(ctx context.Context, h *story.Host, f *fleet, refused tokens) (now tokens, err error) {
	err = h.Mutex("token:their-service").Do(ctx, func(ctx context.Context) error {
		if now = f.load(); now != refused {
			h.Say("sees that it is done: %s", now.access)
			return nil
		}
		now, err = refresh(ctx, h, f, refused)
		return err
	})
	return now, err
}

// refresher replaces tokens that were refused.
type refresher func(ctx context.Context, h *story.Host, f *fleet, refused tokens) (tokens, error)

// simulate lets the service refuse all hosts at once, and returns the number of refreshes and how
// many hosts it serves in the end.
func simulate(ctx context.Context, s *story.Story, refresh refresher) (refreshes, served int, err error) {
	all, err := s.Hosts(hosts)
	if err != nil {
		return 0, 0, err
	}
	f := &fleet{}
	refused := f.service.issue()
	f.save(refused)
	f.service.end(refused.access)
	s.Say("service", "refuses %s", refused.access)
	err = story.Together(all, 1, func(h *story.Host) error {
		_, err := refresh(ctx, h, f, refused)
		if errors.Is(err, errTheft) {
			h.Say("gets an error: %v", err)
			return nil
		}
		return err
	})
	if f.service.call(f.load().access) {
		served = hosts
	}
	s.Say("service", "refreshes: %d; hosts it serves: %d of %d", f.service.refreshes, served, hosts)
	return f.service.refreshes, served, err
}

// tokens are a pair that the service issues together.
type tokens struct{ access, refresh string }

// fleet is the state that the hosts share.
type fleet struct {
	service service
	stored  atomic.Pointer[tokens]
}

func (f *fleet) load() tokens { return *f.stored.Load() }

func (f *fleet) save(t tokens) { f.stored.Store(&t) }

// service stands for another company's service. Its refresh tokens are valid once.
type service struct {
	mu        sync.Mutex
	issued    int
	valid     tokens
	refreshes int // the number of requests to refresh
}

var errTheft = errors.New("this refresh token was used before: all tokens are void")

// issue returns new tokens, and voids the old ones.
func (s *service) issue() tokens {
	s.issued++
	s.valid = tokens{fmt.Sprintf("access-%d", s.issued), fmt.Sprintf("refresh-%d", s.issued)}
	return s.valid
}

func (s *service) refresh(token string) (tokens, error) {
	time.Sleep(10 * time.Millisecond) // the way there
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshes++
	if token != s.valid.refresh {
		s.valid = tokens{}
		return tokens{}, errTheft
	}
	return s.issue(), nil
}

// end expires an access token.
func (s *service) end(access string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.valid.access == access {
		s.valid.access = ""
	}
}

func (s *service) call(access string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return access != "" && access == s.valid.access
}
