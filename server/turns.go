package server

import (
	"context"
	"errors"
	"sync"
)

// turns lets one call at a time act for an Owner. The zero value is ready, and safe for concurrent use.
type turns struct {
	mu sync.Mutex
	m  map[string]*turn
}

type turn struct {
	yield  chan struct{} // is closed when another call wants to act
	wanted bool
	over   chan struct{}
}

// take waits until no other call acts for the Owner. yield is closed as soon as another call wants to. end
// ends the turn.
func (t *turns) take(ctx context.Context, owner string) (yield <-chan struct{}, end func(), err error) {
	for {
		own, other := t.begin(owner)
		if own != nil {
			return own.yield, func() { t.end(owner, own) }, nil
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// try begins a turn if no other call acts for the Owner. It doesn't make that yield.
func (t *turns) try(owner string) (end func(), err error) {
	t.mu.Lock()
	busy := t.m[owner] != nil
	t.mu.Unlock()
	if busy {
		return nil, errBusy
	}
	own, _ := t.begin(owner)
	if own == nil {
		return nil, errBusy
	}
	return func() { t.end(owner, own) }, nil
}

// begin begins a turn, or asks the call that acts to yield and returns its turn.
func (t *turns) begin(owner string) (own, other *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other = t.m[owner]; other != nil {
		if !other.wanted {
			other.wanted = true
			close(other.yield)
		}
		return nil, other
	}
	if t.m == nil {
		t.m = map[string]*turn{}
	}
	own = &turn{yield: make(chan struct{}), over: make(chan struct{})}
	t.m[owner] = own
	return own, nil
}

func (t *turns) end(owner string, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, owner)
	close(own.over)
}

var (
	// errBusy is for a renewal while another call acts for the same Owner.
	errBusy = errors.New("another call for this owner is under way")

	// errYielded ends an acquire that waits when its client makes another call for the same Owner.
	errYielded = errors.New("the client has made another call for this owner")
)
