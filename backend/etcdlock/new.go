package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// New makes a backend of the user's own client, which stays the user's: Close leaves it
// open. It asks the servers for the shortest TTL that they grant, for five seconds at
// most. Of the client it needs the connection, so one whose KV, Watcher or Lease was
// replaced, by package namespace for instance, is ErrInvalid: Options.Prefix is for that.
//
// The client should notice within a TTL that a server has gone silent, and come back to
// one that was down as soon: Open sets DialKeepAliveTime to 10s, DialKeepAliveTimeout to
// 3s, and gRPC's MaxDelay to 2s. With a password, and servers before 3.5, Open is what to
// use: there a client can't log in again once its token has ended.
func New(client *clientv3.Client, opts *Options) (*Backend, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(client.Ctx(), defaultTimeout)
	defer cancel()
	b, err := newCheckedBackend(ctx, client, opts)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", defaultTimeout, err)
		}
		return nil, fmt.Errorf("etcdlock: %s: %w", netaddr.Listed(client.Endpoints()), explain(err))
	}
	return b, nil
}

// checkClient refuses clients that have no connection of their own, or do something else
// with keys than that would.
func checkClient(c *clientv3.Client) error {
	switch {
	case c == nil:
		return fmt.Errorf("%w: the client is nil", driver.ErrInvalid)
	case c.ActiveConnection() == nil:
		return fmt.Errorf("%w: the client has no connection: want one made by clientv3.New", driver.ErrInvalid)
	case c.Ctx().Err() != nil:
		return fmt.Errorf("%w: the client is closed", driver.ErrInvalid)
	}
	for what, is := range map[string][2]any{
		"KV": {c.KV, clientv3.NewKV(c)}, "Watcher": {c.Watcher, clientv3.NewWatcher(c)}, "Lease": {c.Lease, clientv3.NewLease(c)},
	} {
		if reflect.TypeOf(is[0]) != reflect.TypeOf(is[1]) {
			return fmt.Errorf("%w: the client's %s was replaced by a %T: want it as clientv3.New makes it, and Options.Prefix to keep locks apart", driver.ErrInvalid, what, is[0])
		}
	}
	return nil
}

// newCheckedBackend makes a backend that knows what its servers can do.
func newCheckedBackend(ctx context.Context, client *clientv3.Client, opts *Options) (*Backend, error) {
	b, err := newBackend(client, opts)
	if err == nil {
		b.caps.MinTTL, err = minTTL(ctx, client, b.prefix)
	}
	return b, err
}

// addrsOf are a client's endpoints as a URL has them.
func addrsOf(c *clientv3.Client) []string {
	addrs := c.Endpoints()
	for i, endpoint := range addrs {
		if _, addr, ok := strings.Cut(endpoint, "://"); ok {
			addrs[i] = strings.TrimSuffix(addr, "/")
		}
	}
	return addrs
}

// minTTL is the shortest TTL that the server grants. It also finds out whether the server
// wants a login, which who makes leases isn't asked for.
func minTTL(ctx context.Context, client *clientv3.Client, prefix string) (time.Duration, error) {
	_, err := client.Get(ctx, prefix+"distlock", clientv3.WithCountOnly())
	if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) { // there may be names for which it isn't
		return 0, err
	}
	lease, err := client.Grant(ctx, 1)
	if err != nil {
		return 0, err
	}
	client.Revoke(ctx, lease.ID) // if that fails it ends by itself, soon
	return time.Duration(lease.TTL) * time.Second, nil
}
