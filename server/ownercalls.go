package server

import (
	"context"
	"errors"
	"sync"
)

// ownerCalls lets one call at a time act for an Owner. The zero value is ready, and safe for concurrent use.
type ownerCalls struct {
	mu sync.Mutex
	m  map[string]*ownerCall
}

type ownerCall struct {
	yield  chan struct{} // is closed when another call wants to act
	wanted bool
	done   chan struct{}
}

// begin waits until no other call acts for the Owner. yield is closed as soon as another call wants to act.
// The caller calls end at its end. If ctx ends first, begin returns its error.
func (o *ownerCalls) begin(ctx context.Context, owner string) (yield <-chan struct{}, end func(), err error) {
	for {
		own, other := o.add(owner, true)
		if own != nil {
			return own.yield, func() { o.remove(owner, own) }, nil
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// tryBegin is begin without the wait: if another call acts for the Owner it returns errBusy.
func (o *ownerCalls) tryBegin(owner string) (end func(), err error) {
	own, _ := o.add(owner, false)
	if own == nil {
		return nil, errBusy
	}
	return func() { o.remove(owner, own) }, nil
}

// add adds a call, or returns the one that acts. With wants, that one is requested to yield.
func (o *ownerCalls) add(owner string, wants bool) (own, other *ownerCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other = o.m[owner]; other != nil {
		if wants && !other.wanted {
			other.wanted = true
			close(other.yield)
		}
		return nil, other
	}
	if o.m == nil {
		o.m = map[string]*ownerCall{}
	}
	own = &ownerCall{yield: make(chan struct{}), done: make(chan struct{})}
	o.m[owner] = own
	return own, nil
}

func (o *ownerCalls) remove(owner string, own *ownerCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.m, owner)
	close(own.done)
}

var (
	// errBusy is for a renewal while another call acts for the same Owner.
	errBusy = errors.New("another call for this owner is in progress")

	// errYielded ends an acquire that waits when its client makes another call for the same Owner.
	errYielded = errors.New("the client has made another call for this owner")
)
