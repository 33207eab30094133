package distlock

import "context"

// RWMutex is a lock that many may hold for reading or one for writing. Like a Mutex it is a name
// and options, not a state. Unless the backend keeps a queue, readers may starve writers.
type RWMutex struct{ w, r lock }

// RWMutex returns a read/write lock; see Client.Mutex.
func (c *Client) RWMutex(name string, opts ...LockOption) *RWMutex {
	return &RWMutex{
		w: lock{c, c.newSpec(name, Write, 0, opts)},
		r: lock{c, c.newSpec(name, Read, 0, opts)},
	}
}

func (m *RWMutex) one() lock { return m.w }

// Lock waits for the lock for writing; see Mutex.Lock. Lease.Downgrade makes it a
// lock for reading, and no writer gets it in between.
func (m *RWMutex) Lock(ctx context.Context) (*Lease, error) { return m.w.lock(ctx, "lock") }

// RLock waits for the lock for reading; see Mutex.Lock.
func (m *RWMutex) RLock(ctx context.Context) (*Lease, error) { return m.r.lock(ctx, "rlock") }

// TryLock makes one attempt to hold for writing; see Mutex.TryLock.
func (m *RWMutex) TryLock(ctx context.Context) (*Lease, error) { return m.w.try(ctx, "trylock") }

// TryRLock makes one attempt to hold for reading; see Mutex.TryLock.
func (m *RWMutex) TryRLock(ctx context.Context) (*Lease, error) { return m.r.try(ctx, "tryrlock") }

// Do runs f while it holds the lock for writing; see Mutex.Do.
func (m *RWMutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return m.w.do(ctx, f)
}

// RDo runs f while it holds the lock for reading; see Mutex.Do.
func (m *RWMutex) RDo(ctx context.Context, f func(ctx context.Context) error) error {
	return m.r.do(ctx, f)
}

// Reader returns the read side, for Multi.
func (m *RWMutex) Reader() Locker { return reader{m.r} }

type reader struct{ l lock }

func (r reader) one() lock { return r.l }
