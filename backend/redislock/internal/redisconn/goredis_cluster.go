package redisconn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// FromGoRedis returns a client that uses a go-redis client, which stays the caller's, and how long
// that waits for an answer.
func FromGoRedis(c redis.UniversalClient) (Client, time.Duration, error) {
	switch c := c.(type) {
	case *redis.Client:
		return singleClient{newUsersServer(c)}, c.Options().ReadTimeout, nil
	case *redis.ClusterClient:
		return newGoRedisCluster(c), c.Options().ReadTimeout, nil
	case *redis.Ring:
		return nil, 0, fmt.Errorf("%w: a Ring: while its shards come and go a name has two places, and a lock could have two holders", driver.ErrUnsupported)
	}
	return nil, 0, fmt.Errorf("%w: a go-redis client of type %T", driver.ErrUnsupported, c)
}

// newGoRedisCluster returns a client that uses the connections of a user's cluster client.
func newGoRedisCluster(c *redis.ClusterClient) Client {
	o := c.Options()
	scheme := SchemeCluster
	if o.TLSConfig != nil {
		scheme = "rediss+cluster"
	}
	name, nodes := scheme+"://"+netaddr.Listed(o.Addrs), &clusterNodes{client: c}
	if o.ClusterSlots != nil {
		return newStaticCluster(name, o.ClusterSlots, nodes.server)
	}
	return NewCluster(name, func(ctx context.Context) (addrs []string, err error) {
		list, err := nodes.all(ctx)
		for _, node := range list {
			addrs = append(addrs, node.Options().Addr)
		}
		return addrs, err
	}, nodes.server)
}

// newStaticCluster returns the client for a cluster client with a ClusterSlots function, such as
// NewFailoverClusterClient for a master and its replicas. Its servers know nothing of slots, and do
// not report when they move.
func newStaticCluster(name string, query func(ctx context.Context) ([]redis.ClusterSlot, error), open Dialer) Client {
	return newRouter(topology{
		name: name, slotted: true, maxAge: sentinelInterval, open: open,
		load: func(ctx context.Context, _ []string, _ Dialer) (slotTable, error) {
			list, err := query(ctx)
			if err != nil {
				return nil, fromGoRedis(err)
			}
			t := make(slotTable, slots)
			for _, s := range list {
				for slot := max(s.Start, 0); len(s.Nodes) > 0 && slot <= min(s.End, slots-1); slot++ {
					t[slot] = s.Nodes[0].Addr
				}
			}
			return t, nil
		},
	})
}

// clusterNodes finds the clients of a cluster client's servers. go-redis queries a server for that
// each time, and may take longer than a context permits. So concurrent callers share a query, and
// each waits for as long as its context permits.
type clusterNodes struct {
	client *redis.ClusterClient

	mu      sync.Mutex
	running *nodesQuery // nil: none is under way
}

// nodesQuery is one query for all servers.
type nodesQuery struct {
	done  chan struct{}
	nodes []*redis.Client
	err   error
}

func (r *clusterNodes) all(ctx context.Context) ([]*redis.Client, error) {
	r.mu.Lock()
	q := r.running
	if q == nil {
		q = &nodesQuery{done: make(chan struct{})}
		r.running = q
		go r.query(q)
	}
	r.mu.Unlock()
	select {
	case <-q.done:
		return q.nodes, q.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *clusterNodes) query(q *nodesQuery) {
	defer close(q.done)
	ctx, cancel := context.WithTimeout(context.Background(), refreshTimeout)
	defer cancel()
	var mu sync.Mutex
	err := r.client.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		q.nodes = append(q.nodes, node)
		return nil
	})
	q.err = fromGoRedis(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = nil
}

// server returns the server at an address, which is the server's own or the one by which the client
// reaches it.
func (r *clusterNodes) server(ctx context.Context, addr string) (Server, error) {
	list, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, node := range list {
		if o := node.Options(); o.Addr == addr || o.NodeAddress == addr {
			return newUsersServer(node), ifClosed(node)
		}
	}
	return nil, fmt.Errorf("the client does not know the cluster's server %s yet", addr)
}

// ifClosed returns an error if a client that go-redis still knows is closed, as all are with their cluster's. It sends nothing.
func ifClosed(c *redis.Client) error {
	over, end := context.WithCancel(context.Background())
	end()
	if err := c.Process(over, singleTry{redis.NewCmd(over, "PING")}); errors.Is(err, redis.ErrClosed) {
		return ClientClosed(err)
	}
	return nil
}
