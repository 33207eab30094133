package redisconn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	"github.com/redis/rueidis"
)

// FromRueidis makes a client of a rueidis client, which stays the caller's.
func FromRueidis(c rueidis.Client) Client {
	if c.Mode() == rueidis.ClientModeCluster {
		return newRouter(rueidisCluster(c))
	}
	return singleClient{&rueidisServer{client: c}}
}

// rueidisServer sends commands through rueidis, which joins those of many goroutines
// into pipelines, and does not repeat commands that may write.
type rueidisServer struct {
	client rueidis.Client
}

// Do gives the keys as mere arguments: rueidis then uses one connection for all, and
// keeps the order of commands. It would close a connection on which a deadline passed,
// and with it that order: so it sees only that the context ends, not when.
func (c *rueidisServer) Do(ctx context.Context, args []string) (any, error) {
	return fromRueidis(c.client.Do(undated(ctx), c.command(args)))
}

func (c *rueidisServer) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		list[i] = c.command(args)
	}
	got := make([]Answer, len(list))
	for i, r := range c.client.DoMulti(undated(ctx), list...) {
		got[i].Reply, got[i].Err = fromRueidis(r)
	}
	return got
}

func (c *rueidisServer) command(args []string) rueidis.Completed {
	return c.client.B().Arbitrary(args[0]).Args(args[1:]...).Build()
}

// Dedicated takes a connection out of the library's pool.
func (c *rueidisServer) Dedicated(context.Context) (DedicatedConn, error) {
	own, release := c.client.Dedicate()
	return &rueidisConn{own, release}, nil
}

type rueidisConn struct {
	rueidis.DedicatedClient
	release func()
}

func (c *rueidisConn) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		list[i] = c.B().Arbitrary(args[0]).Args(args[1:]...).Build()
	}
	got := make([]Answer, len(list))
	for i, r := range c.DoMulti(undated(ctx), list...) {
		got[i].Reply, got[i].Err = fromRueidis(r)
	}
	return got
}

func (c *rueidisConn) Close(broken bool) {
	if broken {
		c.DedicatedClient.Close()
	}
	c.release()
}

func undated(ctx context.Context) context.Context {
	if _, ok := ctx.Deadline(); ok {
		return endless{ctx}
	}
	return ctx
}

// endless is a context that does not tell its deadline.
type endless struct{ context.Context }

func (endless) Deadline() (time.Time, bool) { return time.Time{}, false }

func fromRueidis(r rueidis.RedisResult) (any, error) {
	reply, err := r.ToAny()
	if err == nil || rueidis.IsRedisNil(err) {
		return reply, nil
	}
	return nil, rueidisError(err)
}

func rueidisError(err error) error {
	if re, ok := rueidis.IsRedisErr(err); ok {
		return &ReplyError{Text: re.Error(), Cause: err}
	}
	if errors.Is(err, rueidis.ErrClosing) {
		return ClientClosed(err)
	}
	return err
}

func (c *rueidisServer) Name() string {
	if c.client.Mode() == rueidis.ClientModeSentinel {
		return SchemeSentinel
	}
	return SchemeServer + "://" + netaddr.Listed(slices.Collect(maps.Keys(c.client.Nodes())))
}

func (c *rueidisServer) Close() {}

func (c *rueidisServer) Listen(_ context.Context, on func(Event)) (Listener, error) {
	conn, release := c.client.Dedicate()
	ended := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			on(Event{Kind: Received, Channel: m.Channel, Message: m.Message})
		},
		OnSubscription: func(s rueidis.PubSubSubscription) {
			on(SubscriptionEvent(s.Kind, s.Channel))
		},
	})
	l := &rueidisListener{conn: conn, release: release, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		if err := <-ended; err != nil {
			on(Event{Kind: Broken, Err: err})
		}
	}()
	return l, nil
}

type rueidisListener struct {
	conn    rueidis.DedicatedClient
	release func()
	done    chan struct{}
}

func (l *rueidisListener) Subscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return oneByOne(channels, func(c string) error { return l.do(ctx, l.conn.B().Ssubscribe().Channel(c).Build()) })
	}
	return l.do(ctx, l.conn.B().Subscribe().Channel(channels...).Build())
}

func (l *rueidisListener) Unsubscribe(ctx context.Context, sharded bool, channels []string) error {
	if sharded {
		return oneByOne(channels, func(c string) error { return l.do(ctx, l.conn.B().Sunsubscribe().Channel(c).Build()) })
	}
	return l.do(ctx, l.conn.B().Unsubscribe().Channel(channels...).Build())
}

// patience bounds a subscription: rueidis tries again and again to connect to a server
// that is gone, and those who wait shall rather know.
const patience = 3 * time.Second

func (l *rueidisListener) do(ctx context.Context, cmd rueidis.Completed) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A deadline would be set on the connection, and outlive the command.
	return rueidisError(l.conn.Do(endless{ctx}, cmd).Error())
}

// Close closes the connection, rather than give it back with its subscriptions.
func (l *rueidisListener) Close() {
	l.conn.Close()
	l.release()
	<-l.done
}
