// Package keyedmutex has a mutex for each key.
package keyedmutex

import (
	"context"
	"sync"
)

// Mutex is a set of mutexes, one for each key. The zero value is ready, and safe for
// concurrent use. Unused keys take no memory.
type Mutex[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*key
}

type key struct {
	locked chan struct{} // holds a token while the key is locked
	users  int           // calls that have it or wait for it
}

// Lock locks k, and returns the function that unlocks it, which is called once. If ctx ends
// first it returns its error.
func (m *Mutex[K]) Lock(ctx context.Context, k K) (unlock func(), err error) {
	e := m.acquire(k)
	select {
	case e.locked <- struct{}{}:
		return func() { <-e.locked; m.release(k, e) }, nil
	case <-ctx.Done():
		m.release(k, e)
		return nil, ctx.Err()
	}
}

// Len returns the number of keys in use.
func (m *Mutex[K]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}

func (m *Mutex[K]) acquire(k K) *key {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.keys[k]
	if e == nil {
		e = &key{locked: make(chan struct{}, 1)}
		if m.keys == nil {
			m.keys = map[K]*key{}
		}
		m.keys[k] = e
	}
	e.users++
	return e
}

func (m *Mutex[K]) release(k K, e *key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(m.keys, k)
	}
}
