package etcdlock

import (
	"context"
	"net/url"
	"strings"

	"github.com/distlock/distlock/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func init() { driver.Register("etcd", open) }

func open(ctx context.Context, u *url.URL) (driver.Backend, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: driver.Hosts(u, "2379")})
	if err != nil {
		return nil, err
	}
	b, err := newBackend(client, &Options{Prefix: strings.TrimPrefix(u.Path, "/")})
	if err == nil {
		b.end = func() { client.Close() }
	}
	return b, err
}

// New makes a backend of the user's own client, which stays open.
func New(client *clientv3.Client, opts *Options) (*Backend, error) { return newBackend(client, opts) }
