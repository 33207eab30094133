package distlock

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/distlock/distlock/driver"
)

// MultiLock is several locks taken as one: all or nothing. Make it with Multi.
type MultiLock struct {
	locks []lock
	bad   error
}

// Multi takes locks of any kind, on any clients, together. They are taken one after
// the other in an order that is the same everywhere, by lock name and then by
// backend name, so that two programs which share several locks can't block each
// other for ever. The same lock twice is ErrInvalid.
func Multi(locks ...Locker) *MultiLock {
	m := &MultiLock{}
	for _, l := range locks {
		if l == nil {
			m.bad = invalid("one of the locks is nil")
			return m
		}
		m.locks = append(m.locks, l.one())
	}
	slices.SortStableFunc(m.locks, byOrder)
	m.bad = m.check()
	return m
}

func byOrder(a, b lock) int {
	return cmp.Or(cmp.Compare(a.s.name, b.s.name), cmp.Compare(a.c.caps.Name, b.c.caps.Name))
}

func (m *MultiLock) check() error {
	if len(m.locks) == 0 {
		return invalid("no locks to take")
	}
	for i, l := range m.locks[1:] {
		if byOrder(m.locks[i], l) == 0 {
			return invalid("lock %s of %s is named twice", driver.Quote(l.s.name), l.c.caps.Name)
		}
	}
	return nil
}

// Lock waits until all are held or ctx is done; see Mutex.Lock. If a lock that it has taken is lost
// while it waits for the next one, it gives up with ErrLost.
func (m *MultiLock) Lock(ctx context.Context) (*MultiLease, error) {
	return m.takeAll(ctx, "lock", lock.lock)
}

// TryLock makes one attempt at each lock, one after the other. If one is refused, it releases the
// others; see Mutex.TryLock.
func (m *MultiLock) TryLock(ctx context.Context) (*MultiLease, error) {
	return m.takeAll(ctx, "trylock", lock.try)
}

// Do runs f while it holds all locks; see Mutex.Do. The context of f ends when any of them is lost.
// Fence(ctx) is the fence of the last in order; FenceOf returns each.
func (m *MultiLock) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if f == nil {
		return noWork("do", "")
	}
	lease, err := m.takeAll(endingWith(ctx), "do", lock.lock)
	if err != nil {
		return err
	}
	return runUnder(lease, f)
}

// takeAll takes the locks in order, each under the context of the one before: the end of one ends all
// that came after it.
func (m *MultiLock) takeAll(ctx context.Context, op string, one func(lock, context.Context, string) (*Lease, error)) (multi *MultiLease, failed error) {
	if m.bad != nil {
		return nil, fail(op, "", m.bad)
	}
	all, taken := &MultiLease{}, false
	defer func() {
		if !taken {
			failed = join(failed, all.unlock(ctx, (*Lease).unlockUnused)) // also if an observer panics
		}
	}()
	for _, l := range m.locks {
		lease, err := all.next(ctx, op, l, one)
		if err != nil {
			return nil, err
		}
		all.leases = append(all.leases, lease)
	}
	taken = true
	return all, nil
}

// next takes one more lock. The wait for it ends with ctx, and with any of the leases that are held
// already.
func (m *MultiLease) next(ctx context.Context, op string, l lock, one func(lock, context.Context, string) (*Lease, error)) (*Lease, error) {
	if len(m.leases) == 0 {
		return one(l, ctx, op)
	}
	parent := m.Context()
	wait, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(whyDone(ctx)) })()
	return one(l, lockContext{wait, parent, true}, op)
}

// MultiLease has the leases of a MultiLock. It is safe for concurrent use.
type MultiLease struct{ leases []*Lease }

// Leases returns the leases in the order in which they were taken: by name.
func (m *MultiLease) Leases() []*Lease { return slices.Clone(m.leases) }

// Context returns a context that ends when any of the leases does; see Lease.Context.
func (m *MultiLease) Context() context.Context { return m.leases[len(m.leases)-1].Context() }

// Err returns the first error among the leases; see Lease.Err.
func (m *MultiLease) Err() error {
	for _, l := range m.leases {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Unlock releases all leases, the last first, even if some fail; see Lease.Unlock.
func (m *MultiLease) Unlock(ctx context.Context) error { return m.unlock(ctx, (*Lease).Unlock) }

func (m *MultiLease) unlock(ctx context.Context, one func(*Lease, context.Context) error) error {
	var errs []error
	func() {
		for _, l := range m.leases {
			defer func() { errs = append(errs, one(l, ctx)) }() // also if an observer panics
		}
	}()
	return errors.Join(errs...)
}
