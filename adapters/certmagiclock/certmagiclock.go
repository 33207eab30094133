// Package certmagiclock gives certmagic, and so Caddy, locks that are renewed, kept apart from other clusters by a
// prefix, and free soon after their holder has died. Certificates stay in the storage that they are in.
package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/caddyserver/certmagic"
	"github.com/distlock/distlock"
)

// Storage is a certmagic.Storage with the locks of distlock. It is safe for concurrent use.
type Storage struct {
	certmagic.Storage
	c      *distlock.Client
	prefix string
	opts   []distlock.LockOption

	mu     sync.Mutex
	leases map[string][]*distlock.Lease // the oldest first: a lost one is followed by another before its Unlock
}

var (
	_ certmagic.Storage   = (*Storage)(nil)
	_ certmagic.TryLocker = (*Storage)(nil)
)

// New returns a storage with the locks of c, whose names begin with prefix. All servers that share the
// storage need the same locks.
//
// certmagic can't be told that a lock was lost. Two servers may then ask for the same certificate, which costs
// a part of the issuer's quota.
func New(storage certmagic.Storage, c *distlock.Client, prefix string, opts ...distlock.LockOption) *Storage {
	return &Storage{Storage: storage, c: c, prefix: prefix, opts: opts, leases: map[string][]*distlock.Lease{}}
}

// Lock waits until a lock is held.
func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := s.mutex(name).Lock(ctx)
	if err == nil {
		s.keep(name, lease)
	}
	return err
}

// TryLock takes a lock if it is free.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	lease, err := s.mutex(name).TryLock(ctx)
	switch {
	case errors.Is(err, distlock.ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	s.keep(name, lease)
	return true, nil
}

// Unlock releases a lock. It returns ErrLost if it was lost before.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	leases := s.leases[name]
	if len(leases) > 1 {
		s.leases[name] = leases[1:]
	} else {
		delete(s.leases, name)
	}
	s.mu.Unlock()
	if len(leases) == 0 {
		return fmt.Errorf("certmagiclock: %q is not locked here", name)
	}
	return leases[0].Unlock(ctx)
}

func (s *Storage) mutex(name string) *distlock.Mutex { return s.c.Mutex(s.prefix+name, s.opts...) }

func (s *Storage) keep(name string, lease *distlock.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[name] = append(s.leases[name], lease)
}
