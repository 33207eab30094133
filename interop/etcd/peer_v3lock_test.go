package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// v3lockSide is a lease, kept alive, in whose name the server locks.
type v3lockSide struct {
	service v3lockpb.LockClient
	lease   clientv3.LeaseID
}

func newV3lock(t *testing.T, d *deployment) peers.Side { return leaseV3lock(t, d.client(t), lease) }

func leaseV3lock(t *testing.T, c *clientv3.Client, ttl time.Duration) v3lockSide {
	t.Helper()
	l, err := c.Grant(t.Context(), int64(ttl.Seconds()))
	if err != nil {
		t.Fatal(err)
	}
	alive, err := c.KeepAlive(t.Context(), l.ID)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range alive {
		}
	}()
	return v3lockSide{v3lockpb.NewLockClient(c.ActiveConnection()), l.ID}
}

func (s v3lockSide) Lock(ctx context.Context, name string) (peers.Held, error) {
	r, err := s.service.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(prefix + name), Lease: int64(s.lease)})
	return v3lockHeld{s, r}, err
}

type v3lockHeld struct {
	v3lockSide
	answer *v3lockpb.LockResponse
}

func (h v3lockHeld) Unlock(ctx context.Context) error {
	_, err := h.service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: h.answer.Key})
	return err
}

func (h v3lockHeld) Fence() uint64 { return uint64(h.answer.Header.Revision) }
