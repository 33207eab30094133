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
func goRedisCluster(c *redis.ClusterClient) place {
	o := c.Options()
	scheme := SchemeCluster
	if o.TLSConfig != nil {
		scheme = "rediss+cluster"
	}
	r := &roll{client: c}
	p := &cluster{
		title: scheme + "://" + netaddr.Listed(o.Addrs),
		seeds: func(ctx context.Context) ([]string, error) {
			clients, err := r.nodes(ctx)
			return addrsOf(clients), err
		},
		dial: func(ctx context.Context, addr string) (Server, error) { return r.node(ctx, addr) },
	}
	if o.ClusterSlots != nil {
		return &arranged{cluster: p, slots: o.ClusterSlots}
	}
	return p
}

// roll knows the client's clients of servers. The client asks a server each time, and
// may take much longer than a context lets it: so those who ask at once share an answer,
// and wait no longer than they want.
type roll struct {
	client *redis.ClusterClient

	mu   sync.Mutex
	call *call // nil: none is under way
}

// call is one look at the roll.
type call struct {
	done  chan struct{}
	nodes []*redis.Client
	err   error
}

func (r *roll) nodes(ctx context.Context) ([]*redis.Client, error) {
	r.mu.Lock()
	c := r.call
	if c == nil {
		c = &call{done: make(chan struct{})}
		r.call = c
		go r.ask(c)
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.nodes, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *roll) ask(c *call) {
	defer close(c.done)
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
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
	r.call = nil
}

func addrsOf(clients []*redis.Client) []string {
	var addrs []string
	for _, node := range clients {
		addrs = append(addrs, node.Options().Addr)
	}
	return addrs
}

// node finds a server by its address, as it calls itself or as the client reaches it.
func (r *roll) node(ctx context.Context, addr string) (Server, error) {
	clients, err := r.nodes(ctx)
	if err != nil {
		return nil, err
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
