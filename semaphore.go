package distlock

import "context"

// Semaphore lets a number of holders in at once. Each permit is a lease with its
// own fence, and is freed if its holder dies. Like a Mutex it is a name and
// options, not a state.
type Semaphore struct{ l lock }

// Semaphore returns a counted lock of limit permits. All users of a name must agree on the limit:
// another one is refused with ErrInvalid while permits are held or waited for.
func (c *Client) Semaphore(name string, limit int, opts ...LockOption) *Semaphore {
	return &Semaphore{lock{c, c.newSpec(name, Counted, limit, opts)}}
}

func (s *Semaphore) one() lock { return s.l }

// Acquire waits for a permit; see Mutex.Lock.
func (s *Semaphore) Acquire(ctx context.Context) (*Lease, error) { return s.l.lock(ctx, "acquire") }

// TryAcquire makes one attempt to get a permit; see Mutex.TryLock.
func (s *Semaphore) TryAcquire(ctx context.Context) (*Lease, error) {
	return s.l.try(ctx, "tryacquire")
}

// Do runs f while it holds a permit; see Mutex.Do.
func (s *Semaphore) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return s.l.do(ctx, f)
}
