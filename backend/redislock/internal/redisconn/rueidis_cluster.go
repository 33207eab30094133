package redisconn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/redis/rueidis"
)

// rueidisCluster is the place of a user's rueidis client of a cluster.
func rueidisCluster(c rueidis.Client) topology {
	return &clusterTopology{
		title: SchemeCluster,
		seeds: func(context.Context) ([]string, error) { return slices.Collect(maps.Keys(c.Nodes())), nil },
		dial: func(_ context.Context, addr string) (Server, error) {
			return &rueidisNode{cluster: c, addr: addr}, nil
		},
	}
}

// rueidisNode is one server of a cluster. rueidis learns of a new one only by being sent
// there: until then commands go by way of the cluster's client.
type rueidisNode struct {
	cluster rueidis.Client
	addr    string

	mu   sync.Mutex
	node *rueidisServer
}

// known is nil as long as rueidis does not know the server.
func (n *rueidisNode) known() *rueidisServer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.node == nil {
		if c, ok := n.cluster.Nodes()[n.addr]; ok {
			n.node = &rueidisServer{client: c}
		}
	}
	return n.node
}

func (n *rueidisNode) Do(ctx context.Context, args []string) (any, error) {
	if s := n.known(); s != nil {
		return s.Do(ctx, args)
	}
	return fromRueidis(n.cluster.Do(undated(ctx), n.routed(args)))
}

// routed is a command that rueidis takes to the server that has its key.
func (n *rueidisNode) routed(args []string) rueidis.Completed {
	cmd := n.cluster.B().Arbitrary(args[0])
	if at := keyAt(args); at > 0 {
		return cmd.Args(args[1:at]...).Keys(args[at]).Args(args[at+1:]...).Build()
	}
	return cmd.Args(args[1:]...).Build()
}

// keyAt is the place of a command's first key; 0 if it has none.
func keyAt(args []string) int {
	switch {
	case (args[0] == "EVALSHA" || args[0] == "EVAL") && len(args) > 3 && args[2] != "0":
		return 3
	case len(args) > 1 && !slices.Contains([]string{"CLUSTER", "CONFIG", "HELLO", "PUBSUB", "SCAN", "WAIT", "PING"}, args[0]):
		return 1
	}
	return 0
}

func (n *rueidisNode) DoAll(ctx context.Context, commands [][]string) []Answer {
	if s := n.known(); s != nil {
		return s.DoAll(ctx, commands)
	}
	list := make([]rueidis.Completed, 0, len(commands))
	for _, args := range commands {
		if args[0] != "ASKING" { // rueidis says that by itself
			list = append(list, n.routed(args))
		}
	}
	results := n.cluster.DoMulti(undated(ctx), list...)
	got := make([]Answer, 0, len(commands))
	for _, args := range commands {
		if args[0] == "ASKING" {
			got = append(got, Answer{Reply: "OK"})
			continue
		}
		var a Answer
		a.Reply, a.Err = fromRueidis(results[0])
		got, results = append(got, a), results[1:]
	}
	return got
}

func (n *rueidisNode) Listen(ctx context.Context, on func(Event)) (Listener, error) {
	if s := n.known(); s != nil {
		return s.Listen(ctx, on)
	}
	return nil, n.unmet()
}

func (n *rueidisNode) Dedicated(ctx context.Context) (DedicatedConn, error) {
	if s := n.known(); s != nil {
		return s.Dedicated(ctx)
	}
	return nil, n.unmet()
}

func (n *rueidisNode) unmet() error {
	return fmt.Errorf("rueidis has not met the server %s yet", n.addr)
}

func (n *rueidisNode) Name() string { return n.addr }
func (n *rueidisNode) Close()       {}
