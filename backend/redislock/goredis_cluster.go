package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// goRedisCluster is the place of a user's cluster client: its servers are reached by the
// client's own connections.
func goRedisCluster(c *redis.ClusterClient) place {
	o := c.Options()
	scheme := toCluster
	if o.TLSConfig != nil {
		scheme = "rediss+cluster"
	}
	p := &cluster{
		title: scheme + "://" + listed(o.Addrs),
		seeds: func(ctx context.Context) ([]string, error) {
			clients, err := nodesOf(ctx, c)
			return addrsOf(clients), fromGoRedis(err)
		},
		dial: func(ctx context.Context, addr string) (server, error) { return nodeOf(ctx, c, addr) },
	}
	if o.ClusterSlots != nil {
		return &arranged{cluster: p, slots: o.ClusterSlots}
	}
	return p
}

// nodesOf are the client's clients of servers.
func nodesOf(ctx context.Context, c *redis.ClusterClient) ([]*redis.Client, error) {
	var mu sync.Mutex
	var list []*redis.Client
	err := c.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, node)
		return nil
	})
	return list, err
}

func addrsOf(clients []*redis.Client) []string {
	var addrs []string
	for _, node := range clients {
		addrs = append(addrs, node.Options().Addr)
	}
	return addrs
}

// nodeOf finds a server by its address, as it calls itself or as the client reaches it.
func nodeOf(ctx context.Context, c *redis.ClusterClient, addr string) (server, error) {
	clients, err := nodesOf(ctx, c)
	if err != nil {
		return nil, fromGoRedis(err)
	}
	for _, node := range clients {
		if o := node.Options(); o.Addr == addr || o.NodeAddress == addr {
			return usersGoRedis(node), nil
		}
	}
	return nil, fmt.Errorf("the client does not know the cluster's server %s yet", addr)
}

// arranged is the place of a cluster client whose user says which server has which
// slot, as NewFailoverClusterClient does for a master and its replicas. Its servers do
// not know of slots, and do not tell when they move.
type arranged struct {
	*cluster
	slots func(ctx context.Context) ([]redis.ClusterSlot, error)
}

func (a *arranged) every() time.Duration { return watched }
func (a *arranged) strict() bool         { return false }

func (a *arranged) look(ctx context.Context, _ []string, _ reacher) (table, error) {
	slots, err := a.slots(ctx)
	if err != nil {
		return nil, fromGoRedis(err)
	}
	var t table
	for _, s := range slots {
		if len(s.Nodes) > 0 {
			t = append(t, span{s.Start, s.End, s.Nodes[0].Addr})
		}
	}
	return t, nil
}
