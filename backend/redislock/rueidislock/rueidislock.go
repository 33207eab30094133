// Package rueidislock keeps locks in Redis through a rueidis client. Package redislock describes them.
//
//	b, err := rueidislock.New(client, nil) // a rueidis.Client of any mode
//	locks, err := distlock.New(b, nil)
package rueidislock

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/redis/rueidis"
)

// New returns a backend on a rueidis client, which stays the caller's: Close leaves it open. opts may
// be nil. The client may be of one server, of Sentinel, or of a cluster.
//
// rueidis exposes neither its database nor the name of Sentinel's master: see Options.Name.
func New(c rueidis.Client, opts *redislock.Options) (*redislock.Backend, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: want a rueidis client, not nil", driver.ErrInvalid)
	}
	return redislock.NewConn(connOf(c), opts)
}

func connOf(c rueidis.Client) redisconn.Client {
	if c.Mode() == rueidis.ClientModeCluster {
		return redisconn.NewCluster(redisconn.SchemeCluster,
			func(context.Context) ([]string, error) { return slices.Collect(maps.Keys(c.Nodes())), nil },
			func(_ context.Context, addr string) (redisconn.Server, error) {
				return &clusterNode{cluster: c, addr: addr}, nil
			})
	}
	return redisconn.NewSingle(&server{client: c})
}
