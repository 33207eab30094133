package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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

func newUsersServer(c *redis.Client) *goRedisServer {
	return &goRedisServer{client: c, pipe: newPipeline(func() *pipelineConn { return &pipelineConn{client: c} })}
}

// maxDedicated is the number of dedicated connections to a server.
const maxDedicated = 16

// NewServer returns a server with connections of its own: one for commands, one for subscriptions,
// and a pool of dedicated ones.
func NewServer(server *redis.Options) Server { return newGoRedisServer(server) }

func newGoRedisServer(server *redis.Options) *goRedisServer {
	o := *server
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.Protocol = 2
	o.DialerRetries = 1      // the caller tries again
	o.MaxRetries = -1        // a failed handshake would wait for itself
	o.DisableIdentity = true // it needs another permission
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	l := &logins{}
	o.CredentialsProviderContext = l.of(o.CredentialsProviderContext)
	so := o
	so.PoolSize = maxDedicated
	c := &goRedisServer{listening: newOwnClient(so, l), newDedicated: func() *pipelineConn { return newOwnClient(so, l) }}
	c.dedicated = c.newDedicated()
	c.pipe = newPipeline(func() *pipelineConn { return newOwnClient(o, l) })
	c.client = c.pipe.current.client
	return c
}

type goRedisServer struct {
	client *redis.Client // the user's; otherwise only its options are used
	pipe   *pipeline

	listening    *pipelineConn // nil for a user's client, like all below
	newDedicated func() *pipelineConn

	mu              sync.Mutex
	dedicated       *pipelineConn
	formerDedicated *pipelineConn // replaced, and may be busy; may be nil
	closed          bool
}

// Reconnect makes later commands use new connections. Commands under way keep theirs.
func (c *goRedisServer) Reconnect() {
	c.pipe.replaceIfLate(true)
	if c.listening == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.formerDedicated != nil {
		return
	}
	c.formerDedicated, c.dedicated = c.dedicated, c.newDedicated()
	time.AfterFunc(c.pipe.late.limit, c.closeFormer)
}

func (c *goRedisServer) closeFormer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.formerDedicated != nil {
		c.formerDedicated.close()
		c.formerDedicated = nil
	}
}

func (c *goRedisServer) Do(ctx context.Context, args []string) (any, error) {
	x := &pipelineRequest{}
	x.one[0] = c.newCommand(ctx, x.args[:0], args)
	x.cmds = x.one[:1:1]
	if err := c.pipe.do(ctx, x); err != nil {
		return nil, err
	}
	reply, err := x.one[0].Result()
	return reply, fromGoRedis(err)
}

func (c *goRedisServer) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := make([]singleTry, len(commands))
	for i, args := range commands {
		list[i] = c.newCommand(ctx, nil, args)
	}
	if err := c.pipe.do(ctx, &pipelineRequest{cmds: list}); err != nil {
		return FailAll(len(list), err)
	}
	return answersOf(list)
}

func answersOf(list []singleTry) []Answer {
	got := make([]Answer, len(list))
	for i, cmd := range list {
		reply, err := cmd.Result()
		got[i] = Answer{reply, fromGoRedis(err)}
	}
	return got
}

// Dedicated uses the user's pool, or the pool of dedicated connections: the own client for
// commands has a single connection.
func (c *goRedisServer) Dedicated(context.Context) (DedicatedConn, error) {
	if c.listening == nil {
		return &goRedisConn{conn: c.client.Conn()}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &goRedisConn{conn: c.dedicated.client.Conn()}, nil
}

type goRedisConn struct {
	conn *redis.Conn
	lost bool // the library knows that it failed
}

func (c *goRedisConn) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := make([]singleTry, len(commands))
	for i, args := range commands {
		list[i] = newCommand(ctx, args)
	}
	execPipeline(ctx, c.conn.Pipeline(), list)
	got := answersOf(list)
	c.lost = c.lost || TransportError(got) != nil
	return got
}

// Close sends QUIT on a connection that works and must not be used again: the library would give
// it to the next caller.
func (c *goRedisConn) Close(broken bool) {
	if broken && !c.lost {
		c.conn.Process(context.Background(), singleTry{redis.NewCmd(context.Background(), "QUIT")})
	}
	c.conn.Close()
}

// newCommand returns a command with these words behind list, which is empty. It points to them if the
// client is not the user's, which costs less than copies. A user's client may have hooks that read words.
func (c *goRedisServer) newCommand(ctx context.Context, list []any, words []string) singleTry {
	list = slices.Grow(list, len(words))
	for i := range words {
		if c.listening == nil {
			list = append(list, words[i])
		} else {
			list = append(list, &words[i])
		}
	}
	return singleTry{redis.NewCmd(ctx, list...)}
}

func newCommand(ctx context.Context, args []string) singleTry {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	return singleTry{redis.NewCmd(ctx, list...)}
}

func fromGoRedis(err error) error {
	if err == nil || errors.Is(err, redis.Nil) {
		return nil
	}
	if re := redis.Error(nil); errors.As(err, &re) {
		return &ReplyError{Text: re.Error(), Cause: err}
	}
	if errors.Is(err, redis.ErrClosed) {
		return ClientClosed(err)
	}
	return err
}

func (c *goRedisServer) Name() string {
	o := c.client.Options()
	switch {
	case o.Addr == "FailoverClient":
		return ServerName(SchemeSentinel, "", o.DB) // which hides the master's name
	case o.Network == "unix":
		return ServerName("redis+unix", o.Addr, o.DB)
	case o.TLSConfig != nil:
		return ServerName("rediss", o.Addr, o.DB)
	}
	return ServerName("redis", o.Addr, o.DB)
}

func (c *goRedisServer) Close() {
	if c.listening == nil {
		return
	}
	c.pipe.close()
	c.listening.close()
	c.mu.Lock()
	c.closed = true
	c.dedicated.close()
	c.mu.Unlock()
	c.closeFormer()
}

func (c *goRedisServer) Listen(ctx context.Context, on func(Event)) (Listener, error) {
	client := c.client
	if c.listening != nil {
		client = c.listening.client
	}
	l := &goRedisListener{pubsub: client.Subscribe(ctx), done: make(chan struct{})}
	// A subscription without channels has no connection. PING makes one.
	if err := l.pubsub.Ping(ctx); err != nil {
		l.pubsub.Close()
		return nil, fromGoRedis(err)
	}
	go func() {
		defer close(l.done)
		on(Event{Kind: Broken, Err: fromGoRedis(l.receive(ctx, on))})
	}()
	return l, nil
}

type goRedisListener struct {
	pubsub *redis.PubSub
	done   chan struct{}
}

func (l *goRedisListener) Subscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return l.pubsub.SSubscribe(ctx, channels...)
	}
	return l.pubsub.Subscribe(ctx, channels...)
}

func (l *goRedisListener) Unsubscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return l.pubsub.SUnsubscribe(ctx, channels...)
	}
	return l.pubsub.Unsubscribe(ctx, channels...)
}

func (l *goRedisListener) Close() {
	l.pubsub.Close()
	<-l.done
}

// healthCheck is how long a subscription may be silent before a PING.
const healthCheck = 5 * time.Second

// receive reports events until the connection ends or does not answer a PING.
func (l *goRedisListener) receive(ctx context.Context, on func(Event)) error {
	for asked := false; ; {
		m, err := l.pubsub.ReceiveTimeout(ctx, healthCheck)
		if silent := net.Error(nil); errors.As(err, &silent) && silent.Timeout() && !asked {
			asked, err = true, l.pubsub.Ping(ctx)
			m = nil
		} else {
			asked = false
		}
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *redis.Subscription:
			on(SubscriptionEvent(m.Kind, m.Channel))
		case *redis.Message:
			on(Event{Kind: Received, Channel: m.Channel, Message: m.Payload})
		}
	}
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
			return newUsersServer(node), nil
		}
	}
	return nil, fmt.Errorf("the client does not know the cluster's server %s yet", addr)
}

// CertifiedFor returns a config that demands a certificate for addr. If addr is an IP address, as
// servers of a cluster call each other, a certificate for one of the user's host names will do
// too. If c has a ServerName, all servers must show it.
func CertifiedFor(c *tls.Config, addr string, users []string) *tls.Config {
	c = c.Clone()
	if c.ServerName != "" {
		return c
	}
	host, _, _ := net.SplitHostPort(addr)
	c.ServerName = host
	names := hostnames(users)
	if net.ParseIP(host) == nil || len(names) == 0 {
		return c
	}
	roots, accepted := c.RootCAs, append([]string{host}, names...)
	c.ServerName = names[0]
	c.InsecureSkipVerify = true // VerifyConnection verifies more than one name
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if err := verify(s.PeerCertificates, roots, accepted); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
		}
		return nil
	}
	return c
}

// hostnames returns the hosts that are not IP addresses.
func hostnames(addrs []string) []string {
	var names []string
	for _, addr := range addrs {
		if host, _, _ := net.SplitHostPort(addr); net.ParseIP(host) == nil {
			names = append(names, host)
		}
	}
	return names
}

// verify checks that a chain of certificates, the server's own first, leads to a root and is for
// one of the names.
func verify(chain []*x509.Certificate, roots *x509.CertPool, names []string) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		return err
	}
	if slices.ContainsFunc(names, func(name string) bool { return chain[0].VerifyHostname(name) == nil }) {
		return nil
	}
	return chain[0].VerifyHostname(names[0])
}
