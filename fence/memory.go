package fence

import (
	"context"
	"fmt"
	"sync"
)

// Memory guards data in the memory of one process. The zero value is ready to use. It is safe for
// concurrent use.
//
// Calls with the same fence are inside together, since they work for the same holder. A call with a
// greater fence waits until they have left, and meanwhile calls with smaller fences are refused.
//
// It keeps the name and the fence of every resource that it has seen, about 100 bytes each:
// forgetting one would accept any fence again. Use it for data that ends with the process. Data
// elsewhere needs a guard there.
type Memory struct {
	mu    sync.Mutex
	rooms map[string]*room
}

// room is one resource.
type room struct {
	seen   uint64        // the greatest fence that was presented
	under  uint64        // the fence of those inside
	inside int           // number of calls inside
	empty  chan struct{} // closed when the last one leaves; nil while no call waits
}

// Enter implements Guard. If ctx ends first Enter returns its error, and smaller fences are still
// refused. Don't enter a resource under another fence while inside: that would deadlock.
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

// Forget removes a resource that no longer exists. It returns false, and does nothing, while a call
// is inside.
func (m *Memory) Forget(resource string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rooms[resource]; r != nil && r.inside > 0 {
		return false
	}
	delete(m.rooms, resource)
	return true
}

// try accepts a fence, refuses it, or returns a channel to wait for.
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
