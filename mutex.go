package distlock

import "context"

// lock is what every kind of lock is made of: a client and a spec.
type lock struct {
	c *Client
	s *spec
}

// Locker is a lock that Multi can take: a *Mutex, an *RWMutex (its write side), the
// value of RWMutex.Reader, or a *Semaphore (one permit).
type Locker interface{ one() lock }

// Mutex is an exclusive lock. It is a name and options, not a state: it may be
// copied, made anew, and used by many goroutines at once. All state is in a Lease.
type Mutex struct{ l lock }

// Mutex names an exclusive lock. Bad names and options are reported by the first
// call that uses them, as ErrInvalid or ErrUnsupported.
func (c *Client) Mutex(name string, opts ...LockOption) *Mutex {
	return &Mutex{lock{c, c.newSpec(name, Exclusive, 0, opts)}}
}

func (m *Mutex) one() lock { return m.l }

// Lock waits until the lock is held or ctx is done. ctx bounds the wait only: the
// lease outlives it, and ends by Unlock or loss.
//
// A wait that ctx ends returns an *Error that matches ctx.Err() and the last answer
// of the backend (ErrHeld, ErrUnavailable). An unreachable backend does not end the
// wait. ErrInvalid, ErrUnsupported and ErrClosed end it at once. So does ctx if it is that
// of a lease which holds the lock and keeps this one out (ErrInvalid): the caller would
// wait for itself.
func (m *Mutex) Lock(ctx context.Context) (*Lease, error) { return m.l.lock(ctx, "lock") }

// TryLock makes one attempt. ErrHeld if someone else holds the lock or is before
// the caller in line; ErrUnavailable if the backend did not answer in time.
func (m *Mutex) TryLock(ctx context.Context) (*Lease, error) { return m.l.try(ctx, "trylock") }

// Do runs f while it holds the lock. The context of f is the lease's, and ends with
// ctx too. If f panics the lock is released and the panic goes on.
//
// The error joins that of f with that of the lock: ErrLost if the lease was lost
// before f returned, even if f saw no error.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return m.l.do(ctx, f)
}
