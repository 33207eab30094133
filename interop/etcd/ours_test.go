package etcd

import (
	"testing"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// url is where distlock has the locks that the peers name with prefix.
func (d *deployment) url() string { return d.URL() + "/" + prefix }

// distlock is a client with a connection of its own.
func (d *deployment) distlock(t *testing.T, opts *distlock.Options) peers.Distlock {
	t.Helper()
	b, err := driver.Open(t.Context(), d.url())
	if err != nil {
		t.Fatal(err)
	}
	return peers.NewDistlock(t, b, opts)
}

// shared is a client on a connection that others use too.
func shared(t *testing.T, c *clientv3.Client) peers.Distlock {
	t.Helper()
	b, err := etcdlock.New(c, &etcdlock.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return peers.NewDistlock(t, b, nil)
}
