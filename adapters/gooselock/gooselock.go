// Package gooselock lets goose migrate a database once, whichever process begins. The lock may be in another store
// than the database that is migrated, so it works for databases that goose has no lock for.
package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/distlock/distlock"
	"github.com/pressly/goose/v3/lock"
)

var _ lock.Locker = (*Locker)(nil)

// Locker is goose's lock.Locker, for goose.WithLocker. It is safe for concurrent use.
//
// goose can't be told that a lock was lost: it finishes its migrations, and Unlock returns ErrLost. Give the
// context of goose's call an end, and let the lock's TTL exceed the pauses of the process.
type Locker struct {
	m *distlock.Mutex

	mu     sync.Mutex
	leases []*distlock.Lease // the oldest first: a lost one is followed by another before its Unlock
}

// New returns a Locker with the lock m.
func New(m *distlock.Mutex) *Locker { return &Locker{m: m} }

// Lock waits until the lock is held. The database is not used.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	lease, err := l.m.Lock(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases = append(l.leases, lease)
	return nil
}

// Unlock releases the lock. It returns ErrLost if the lock was lost before.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	l.mu.Lock()
	leases := l.leases
	l.leases = leases[min(1, len(leases)):]
	l.mu.Unlock()
	if len(leases) == 0 {
		return errors.New("gooselock: unlock of a lock that is not held")
	}
	return leases[0].Unlock(ctx)
}
