package redisconn

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/redis/go-redis/v9"
)

// goRedisCluster is the place of a user's cluster client: its servers are reached by the
// client's own connections.
func goRedisCluster(c *redis.ClusterClient) topology {
	o := c.Options()
	scheme := SchemeCluster
	if o.TLSConfig != nil {
		scheme = "rediss+cluster"
	}
	r := &clusterNodes{client: c}
	p := &clusterTopology{
		title: scheme + "://" + netaddr.Listed(o.Addrs),
		seeds: func(ctx context.Context) ([]string, error) {
			clients, err := r.nodes(ctx)
			return addrsOf(clients), err
		},
		dial: func(ctx context.Context, addr string) (Server, error) { return r.node(ctx, addr) },
	}
	if o.ClusterSlots != nil {
		return &staticTopology{clusterTopology: p, slots: o.ClusterSlots}
	}
	return p
}

// clusterNodes knows the client's clients of servers. The client asks a server each time, and
// may take much longer than a context lets it: so those who ask at once share an answer,
// and wait no longer than they want.
type clusterNodes struct {
	client *redis.ClusterClient

	mu   sync.Mutex
	running *nodesQuery // nil: none is under way
}

// nodesQuery is one look at the roll.
type nodesQuery struct {
	done  chan struct{}
	nodes []*redis.Client
	err   error
}

func (r *clusterNodes) nodes(ctx context.Context) ([]*redis.Client, error) {
	r.mu.Lock()
	c := r.running
	if c == nil {
		c = &nodesQuery{done: make(chan struct{})}
		r.running = c
		go r.query(c)
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.nodes, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *clusterNodes) query(c *nodesQuery) {
	defer close(c.done)
	ctx, cancel := context.WithTimeout(context.Background(), refreshTimeout)
	defer cancel()
	var mu sync.Mutex
	err := r.client.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		c.nodes = append(c.nodes, node)
		return nil
	})
	c.err = fromGoRedis(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = nil
}

func addrsOf(clients []*redis.Client) []string {
	var addrs []string
	for _, node := range clients {
		addrs = append(addrs, node.Options().Addr)
	}
	return addrs
}

// node finds a server by its address, as it calls itself or as the client reaches it.
func (r *clusterNodes) node(ctx context.Context, addr string) (Server, error) {
	clients, err := r.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, node := range clients {
		if o := node.Options(); o.Addr == addr || o.NodeAddress == addr {
			return newUsersServer(node), nil
		}
	}
	return nil, fmt.Errorf("the client does not know the cluster's server %s yet", addr)
}

// staticTopology is the place of a cluster client whose user says which server has which
// slot, as NewFailoverClusterClient does for a master and its replicas. Its servers do
// not know of slots, and do not tell when they move.
type staticTopology struct {
	*clusterTopology
	slots func(ctx context.Context) ([]redis.ClusterSlot, error)
}

func (a *staticTopology) maxAge() time.Duration { return sentinelInterval }
func (a *staticTopology) strict() bool         { return false }

func (a *staticTopology) load(ctx context.Context, _ []string, _ Dialer) (slotTable, error) {
	slots, err := a.slots(ctx)
	if err != nil {
		return nil, fromGoRedis(err)
	}
	var t slotTable
	for _, s := range slots {
		if len(s.Nodes) > 0 {
			t = append(t, slotRange{s.Start, s.End, s.Nodes[0].Addr})
		}
	}
	return t, nil
}
