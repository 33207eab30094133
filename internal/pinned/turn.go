package pinned

import (
	"context"
	"sync"
)

// turns lets calls for one key come one after the other.
type turns struct {
	mu sync.Mutex
	m  map[string]*turn
}

type turn struct {
	free  chan struct{} // holds a token while nobody has the turn
	users int
}

// enter waits for the turn of a key. leave gives it on, once.
func (t *turns) enter(ctx context.Context, key string) (leave func(), err error) {
	t.mu.Lock()
	own := t.m[key]
	if own == nil {
		own = &turn{free: make(chan struct{}, 1)}
		own.free <- struct{}{}
		t.m[key] = own
	}
	own.users++
	t.mu.Unlock()
	select {
	case <-own.free:
		return func() { own.free <- struct{}{}; t.left(key, own) }, nil
	case <-ctx.Done():
		t.left(key, own)
		return nil, ctx.Err()
	}
}

func (t *turns) left(key string, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.m, key)
	}
}
