// Package wait has the ways in which goroutines wait: for a time, for a random time, for a
// signal, for a key, and for other goroutines.
package wait

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Sleep waits for d. It returns the error of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Jitter returns a random time between d/2 and 3d/2, so that goroutines that were refused
// together do not come back together.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}

// Backoff returns base, doubled for each try before this one (the first is 0), up to limit. It is
// at least a microsecond.
func Backoff(try int, base, limit time.Duration) time.Duration {
	d := limit
	if try < 20 && base < limit>>try {
		d = base << try
	}
	return max(d, time.Microsecond)
}

// grid is when waiters that are told try again, all of a process at the same times: one message for many costs the store half as much.
const grid = 100 * time.Millisecond

var began = time.Now()

// Refused returns for how long a waiter that was refused waits for a signal: a message may be lost with its sender. poll is for one
// without a watch; 0: there is one. place is the TTL of a place in a queue, which lives for so long after the last attempt; 0: none.
func Refused(held *driver.HeldError, poll, place time.Duration) time.Duration {
	d, attempts := cmp.Or(poll, time.Second), time.Duration(5)
	told := poll == 0 && held.Signaled
	if told {
		d, attempts = 10*time.Second, 3
	}
	if place > 0 {
		d = min(d, place/attempts)
	}
	if told && d > time.Second {
		d -= rand.N(d / 8)
		d -= (time.Since(began) + d) % grid
	} else {
		d = Jitter(d)
	}
	if held.Retry > 0 { // which is not trusted below 50 ms
		d = min(d, max(min(held.Retry, d), 50*time.Millisecond)+time.Millisecond)
	}
	return d
}

// Signal notifies one goroutine, which receives from it. Notifications that have not been received
// yet count as one.
type Signal chan struct{}

// NewSignal returns a signal without a notification.
func NewSignal() Signal { return make(Signal, 1) }

// Notify notifies the receiver. It never blocks.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Group is a sync.WaitGroup that has the method Go before Go 1.25, too.
type Group struct{ sync.WaitGroup }

// Go calls f in a goroutine that Wait waits for.
func (g *Group) Go(f func()) {
	g.Add(1)
	go func() {
		defer g.Done()
		f()
	}()
}

// KeyedMutex is a set of mutexes, one for each key. The zero value is ready, and safe for
// concurrent use. Unused keys take no memory.
type KeyedMutex[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*keyLock
}

type keyLock struct {
	locked chan struct{} // holds a token while the key is locked
	users  int           // calls that have it or wait for it
}

// Lock locks k, and returns the function that unlocks it, which is called once. If ctx ends
// first it returns its error.
func (m *KeyedMutex[K]) Lock(ctx context.Context, k K) (unlock func(), err error) {
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
func (m *KeyedMutex[K]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}

func (m *KeyedMutex[K]) acquire(k K) *keyLock {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.keys[k]
	if e == nil {
		e = &keyLock{locked: make(chan struct{}, 1)}
		if m.keys == nil {
			m.keys = map[K]*keyLock{}
		}
		m.keys[k] = e
	}
	e.users++
	return e
}

func (m *KeyedMutex[K]) release(k K, e *keyLock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.users--; e.users == 0 {
		delete(m.keys, k)
	}
}
