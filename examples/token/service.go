package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// tokens are a pair that the service issues together.
type tokens struct{ access, refresh string }

// fleet is the state that the hosts share.
type fleet struct {
	service *service
	mu      sync.Mutex
	stored  tokens
}

func newFleet() *fleet {
	s := &service{}
	return &fleet{service: s, stored: s.issue()}
}

func (f *fleet) load() tokens {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stored
}

func (f *fleet) save(t tokens) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stored = t
}

// service stands for another company's service. Its refresh tokens are valid once.
type service struct {
	mu        sync.Mutex
	issued    int
	valid     tokens
	refreshes int // how often it was asked to
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
