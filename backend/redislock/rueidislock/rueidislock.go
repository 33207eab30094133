// Package rueidislock keeps locks in Redis through a rueidis client. Package redislock describes them.
//
//	b, err := rueidislock.New(client, nil) // a rueidis.Client of any mode
//	locks, err := distlock.New(b, nil)
package rueidislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
)

// New returns a backend on a rueidis client, which stays the caller's: Close leaves it open. opts may
// be nil. The client may be of one server, of Sentinel, or of a cluster. A cluster's client must have one connection to
// each node, which is rueidis's default: with PipelineMultiplex above 0, and anywhere with DisableAutoPipelining, a release may
// overtake the attempt of a caller that gave up, and the lock then stays held for its TTL.
//
// A client with ConnLifetime is ErrInvalid: rueidis sends all that waits for an answer again when a connection's life ends,
// also with DisableRetry, and then Unlock says that the lock it has just released was lost. Passwords that change need no
// ConnLifetime, but AuthCredentialsFn, which rueidis calls for each connection.
//
// rueidis exposes neither its database nor the name of Sentinel's master: see Options.Name.
func New(c rueidis.Client, opts *redislock.Options) (*redislock.Backend, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: want a rueidis client, not nil", driver.ErrInvalid)
	}
	if connsExpire(c) {
		return nil, fmt.Errorf("%w: a rueidis client with ConnLifetime sends commands twice: want one without", driver.ErrInvalid)
	}
	return redislock.NewConn(connOf(c), opts)
}

// connsExpire reports whether a client is known to have ConnLifetime. rueidis does not say it, but its clients have a
// field for it. One that has no such field any more is taken as it is.
func connsExpire(c rueidis.Client) bool {
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return false
	}
	has := v.Elem().FieldByName("hasLftm")
	return has.IsValid() && has.Kind() == reflect.Bool && has.Bool()
}

func connOf(c rueidis.Client) redisconn.Client {
	if c.Mode() == rueidis.ClientModeCluster {
		return redisconn.NewCluster(redisconn.SchemeCluster,
			func(context.Context) ([]string, error) { return slices.Collect(maps.Keys(c.Nodes())), nil },
			func(ctx context.Context, addr string) (redisconn.Server, error) {
				// A node's client is closed when the node leaves the cluster too.
				if err := errorOf(c.Do(ctx, c.B().Ping().Build()).Error()); errors.Is(err, redisconn.ErrClientClosed) {
					return nil, err
				}
				return &clusterNode{cluster: c, addr: addr}, nil
			})
	}
	return redisconn.NewSingle(newServer(c))
}

// server sends commands through rueidis, which pipelines the commands of many goroutines, and does
// not repeat commands that may write.
type server struct {
	client     rueidis.Client
	dedicating chan struct{} // one for each caller that waits for the pool
}

// Do passes the keys as mere arguments, so that rueidis uses one connection for all and keeps the
// order of commands. A passed deadline would make rueidis close the connection, and break that
// order. So rueidis sees only the end of the context, not its deadline.
func (c *server) Do(ctx context.Context, args []string) (any, error) {
	return fromResult(c.client.Do(withoutDeadline(ctx), c.command(args)))
}

func (c *server) DoAll(ctx context.Context, commands [][]string) []redisconn.Answer {
	list := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		list[i] = c.command(args)
	}
	got := make([]redisconn.Answer, len(list))
	for i, r := range c.client.DoMulti(withoutDeadline(ctx), list...) {
		got[i].Reply, got[i].Err = fromResult(r)
	}
	return got
}

func (c *server) command(args []string) rueidis.Completed {
	return c.client.B().Arbitrary(args[0]).Args(args[1:]...).Build()
}

// Dedicated takes a connection from rueidis's pool, all of which blocking commands of the program may have for long. Dedicate knows no
// context: what comes too late goes back.
func (c *server) Dedicated(ctx context.Context) (redisconn.DedicatedConn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, poolTimeout, errPoolInUse)
	defer cancel()
	got := make(chan *dedicatedConn)
	select {
	case c.dedicating <- struct{}{}:
		go func() {
			own, release := c.client.Dedicate()
			<-c.dedicating
			select {
			case got <- &dedicatedConn{own, release}:
			case <-ctx.Done():
				release()
			}
		}()
	case <-ctx.Done():
	}
	select {
	case conn := <-got:
		return conn, nil
	case <-ctx.Done():
		return nil, driver.Unsent(context.Cause(ctx))
	}
}

const (
	poolTimeout = 3 * time.Second // for a connection of the pool
	dedicating  = 16              // how many callers wait for one at once
)

var errPoolInUse = errors.New("all connections of the client's pool are in use: want a greater BlockingPoolSize; a subscription takes one of it")

func newServer(c rueidis.Client) *server { return &server{c, make(chan struct{}, dedicating)} }

type dedicatedConn struct {
	rueidis.DedicatedClient
	release func()
}

func (c *dedicatedConn) DoAll(ctx context.Context, commands [][]string) []redisconn.Answer {
	list := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		list[i] = c.B().Arbitrary(args[0]).Args(args[1:]...).Build()
	}
	got := make([]redisconn.Answer, len(list))
	for i, r := range c.DoMulti(withoutDeadline(ctx), list...) {
		got[i].Reply, got[i].Err = fromResult(r)
	}
	return got
}

func (c *dedicatedConn) Close(broken bool) {
	if broken {
		c.DedicatedClient.Close()
	}
	c.release()
}

func withoutDeadline(ctx context.Context) context.Context {
	if _, ok := ctx.Deadline(); ok {
		return noDeadline{ctx}
	}
	return ctx
}

// noDeadline hides the deadline of a context.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

func fromResult(r rueidis.RedisResult) (any, error) {
	reply, err := r.ToAny()
	if err == nil || rueidis.IsRedisNil(err) {
		return reply, nil
	}
	return nil, errorOf(err)
}

func errorOf(err error) error {
	if re, ok := rueidis.IsRedisErr(err); ok {
		return &redisconn.ReplyError{Text: re.Error(), Cause: err}
	}
	if errors.Is(err, rueidis.ErrClosing) {
		return redisconn.ClientClosed(err)
	}
	return err
}

func (c *server) Name() string {
	if c.client.Mode() == rueidis.ClientModeSentinel {
		return redisconn.SchemeSentinel
	}
	return redisconn.SchemeServer + "://" + netaddr.Listed(slices.Collect(maps.Keys(c.client.Nodes())))
}

func (c *server) Close() {}

func (c *server) Listen(ctx context.Context, on func(redisconn.Event)) (redisconn.Listener, error) {
	own, err := c.Dedicated(ctx)
	if err != nil {
		return nil, err
	}
	conn := own.(*dedicatedConn)
	ended := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			on(redisconn.Event{Kind: redisconn.Received, Channel: m.Channel, Message: m.Message})
		},
		OnSubscription: func(s rueidis.PubSubSubscription) {
			on(redisconn.SubscriptionEvent(s.Kind, s.Channel))
		},
	})
	l := &listener{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		if err := <-ended; err != nil {
			on(redisconn.Event{Kind: redisconn.Broken, Err: errorOf(err)})
		}
	}()
	return l, nil
}

type listener struct {
	conn *dedicatedConn
	done chan struct{}
}

func (l *listener) Subscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return l.do(ctx, l.conn.B().Ssubscribe().Channel(channels...).Build())
	}
	return l.do(ctx, l.conn.B().Subscribe().Channel(channels...).Build())
}

func (l *listener) Unsubscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return l.do(ctx, l.conn.B().Sunsubscribe().Channel(channels...).Build())
	}
	return l.do(ctx, l.conn.B().Unsubscribe().Channel(channels...).Build())
}

// subscribeTimeout bounds a subscription. rueidis tries to connect again and again to a server
// that is gone, and waiters should know.
const subscribeTimeout = 3 * time.Second

func (l *listener) do(ctx context.Context, cmd rueidis.Completed) error {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	// A deadline would be set on the connection, and outlast the command.
	return errorOf(l.conn.Do(noDeadline{ctx}, cmd).Error())
}

// Close closes the connection, which has subscriptions, instead of returning it to the pool.
func (l *listener) Close() {
	l.conn.Close(true)
	<-l.done
}

// clusterNode is one server of a cluster. rueidis gets to know a new server only by sending there.
// Until then commands go through the cluster's client.
type clusterNode struct {
	cluster rueidis.Client
	addr    string

	mu   sync.Mutex
	node *server
}

// known returns the server, or nil as long as rueidis does not know it.
func (n *clusterNode) known() *server {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.node == nil {
		if c, ok := n.cluster.Nodes()[n.addr]; ok {
			n.node = newServer(c)
		}
	}
	return n.node
}

func (n *clusterNode) Do(ctx context.Context, args []string) (any, error) {
	if s := n.known(); s != nil {
		return s.Do(ctx, args)
	}
	return fromResult(n.cluster.Do(withoutDeadline(ctx), n.routed(args)))
}

// routed returns a command that rueidis sends to the server that has its key.
func (n *clusterNode) routed(args []string) rueidis.Completed {
	cmd := n.cluster.B().Arbitrary(args[0])
	if at := keyAt(args); at > 0 {
		return cmd.Args(args[1:at]...).Keys(args[at]).Args(args[at+1:]...).Build()
	}
	return cmd.Args(args[1:]...).Build()
}

// keyAt returns the index of a command's first key, or 0.
func keyAt(args []string) int {
	switch {
	case (args[0] == "EVALSHA" || args[0] == "EVAL") && len(args) > 3 && args[2] != "0":
		return 3
	case len(args) > 1 && !slices.Contains([]string{"CLUSTER", "CONFIG", "HELLO", "PUBSUB", "SCAN", "WAIT", "PING"}, args[0]):
		return 1
	}
	return 0
}

func (n *clusterNode) DoAll(ctx context.Context, commands [][]string) []redisconn.Answer {
	if s := n.known(); s != nil {
		return s.DoAll(ctx, commands)
	}
	list := make([]rueidis.Completed, 0, len(commands))
	for _, args := range commands {
		if args[0] != "ASKING" { // rueidis sends it itself
			list = append(list, n.routed(args))
		}
	}
	results := n.cluster.DoMulti(withoutDeadline(ctx), list...)
	got := make([]redisconn.Answer, 0, len(commands))
	for _, args := range commands {
		if args[0] == "ASKING" {
			got = append(got, redisconn.Answer{Reply: "OK"})
			continue
		}
		var a redisconn.Answer
		a.Reply, a.Err = fromResult(results[0])
		got, results = append(got, a), results[1:]
	}
	return got
}

func (n *clusterNode) Listen(ctx context.Context, on func(redisconn.Event)) (redisconn.Listener, error) {
	if s := n.known(); s != nil {
		return s.Listen(ctx, on)
	}
	return nil, n.unmet()
}

func (n *clusterNode) Dedicated(ctx context.Context) (redisconn.DedicatedConn, error) {
	if s := n.known(); s != nil {
		return s.Dedicated(ctx)
	}
	return nil, n.unmet()
}

func (n *clusterNode) unmet() error {
	return fmt.Errorf("rueidis has not met the server %s yet", n.addr)
}

func (n *clusterNode) Name() string { return n.addr }

func (n *clusterNode) Close() {}
