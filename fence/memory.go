package fence

import (
	"context"
	"fmt"
	"sync"
)

// Memory guards what a process keeps in its own memory. The zero value is ready, and
// safe for concurrent use.
//
// Those who present the same fence are inside together, since they work for the same
// holder. One with a greater fence waits until they have left, while nobody with a smaller
// one gets in any more.
//
// It keeps the name and the fence of every resource that it has ever seen, about 100
// bytes each: one that is forgotten would be open to anyone. Use it for data that ends
// with the process. What is kept elsewhere needs its guard there.
type Memory struct {
	mu    sync.Mutex
	rooms map[string]*room
}

// room is one resource.
type room struct {
	seen   uint64        // the greatest fence that was presented
	under  uint64        // the fence of those inside
	inside int           // how many
	empty  chan struct{} // closed when the last one leaves; nil while nobody waits for it
}

// Enter is that of Guard. If ctx ends first, its error is returned, and smaller fences
// are refused all the same. Don't enter a resource under another fence while inside: it
// waits for yourself.
func (m *Memory) Enter(ctx context.Context, resource string, fence uint64) (leave func(), err error) {
	if err := Valid(resource, fence); err != nil {
		return nil, err
	}
	for {
		r, wait, err := m.try(resource, fence)
		if err != nil {
			return nil, err
		}
		if wait == nil {
			return sync.OnceFunc(func() { m.leave(r) }), nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("fence: %q is still in use under a smaller fence: %w", resource, context.Cause(ctx))
		}
	}
}

// Do calls f inside and returns its error.
func (m *Memory) Do(ctx context.Context, resource string, fence uint64, f func() error) error {
	leave, err := m.Enter(ctx, resource, fence)
	if err != nil {
		return err
	}
	defer leave()
	return f()
}

// Forget drops what is known of a resource that is gone for good, and reports whether it
// did: not while somebody is inside.
func (m *Memory) Forget(resource string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rooms[resource]; r != nil && r.inside > 0 {
		return false
	}
	delete(m.rooms, resource)
	return true
}

// try lets a fence in, refuses it, or returns what to wait for.
func (m *Memory) try(resource string, fence uint64) (*room, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.room(resource)
	if err := Check(resource, fence, r.seen); err != nil {
		return nil, nil, err
	}
	r.seen = fence
	if r.inside > 0 && r.under != fence {
		if r.empty == nil {
			r.empty = make(chan struct{})
		}
		return nil, r.empty, nil
	}
	r.under = fence
	r.inside++
	return r, nil, nil
}

func (m *Memory) room(resource string) *room {
	if m.rooms == nil {
		m.rooms = map[string]*room{}
	}
	r := m.rooms[resource]
	if r == nil {
		r = &room{}
		m.rooms[resource] = r
	}
	return r
}

func (m *Memory) leave(r *room) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.inside--
	if r.inside == 0 && r.empty != nil {
		close(r.empty)
		r.empty = nil
	}
}
