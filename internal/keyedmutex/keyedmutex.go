// Package keyedmutex lets callers who want the same key come one after the other.
package keyedmutex

import (
	"context"
	"sync"
)

// Turns gives turns, for each key apart. The zero value is ready, and safe for concurrent
// use. Keys that nobody wants take no room.
type Turns[K comparable] struct {
	mu sync.Mutex
	m  map[K]*turn
}

type turn struct {
	taken chan struct{} // holds a token while somebody has it
	users int           // who have it or wait for it
}

// Enter waits for the caller's turn, which leave ends; it is called once. If ctx ends first
// its error is returned.
func (t *Turns[K]) Enter(ctx context.Context, key K) (leave func(), err error) {
	own := t.join(key)
	select {
	case own.taken <- struct{}{}:
		return func() { <-own.taken; t.part(key, own) }, nil
	case <-ctx.Done():
		t.part(key, own)
		return nil, ctx.Err()
	}
}

// Len is how many keys somebody wants.
func (t *Turns[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

func (t *Turns[K]) join(key K) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.m[key]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		if t.m == nil {
			t.m = map[K]*turn{}
		}
		t.m[key] = own
	}
	own.users++
	return own
}

func (t *Turns[K]) part(key K, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.m, key)
	}
}
