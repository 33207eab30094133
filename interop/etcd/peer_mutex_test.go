package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock/internal/testkit/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// mutexSide is a session of concurrency's, and so one participant.
type mutexSide struct{ *concurrency.Session }

func newMutex(t *testing.T, d *deployment) peers.Side { return newSession(t, d.client(t)) }

func newSession(t *testing.T, c *clientv3.Client) mutexSide {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(lease.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return mutexSide{s}
}

func (s mutexSide) mutex(name string) *concurrency.Mutex {
	return concurrency.NewMutex(s.Session, prefix+name)
}

func (s mutexSide) Lock(ctx context.Context, name string) (peers.Held, error) {
	m := s.mutex(name)
	return mutexHeld{m}, m.Lock(ctx)
}

func (s mutexSide) Try(ctx context.Context, name string) (peers.Held, error) {
	m := s.mutex(name)
	err := m.TryLock(ctx)
	switch {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return mutexHeld{m}, nil
}

type mutexHeld struct{ *concurrency.Mutex }

func (h mutexHeld) Fence() uint64 { return uint64(h.Header().Revision) }
