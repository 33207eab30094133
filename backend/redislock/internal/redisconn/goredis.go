package redisconn

import (
	"context"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// goRedisServer is a server that a user's client reaches.
type goRedisServer struct {
	client *redis.Client
	pipe   *pipeline
}

func newUsersServer(c *redis.Client) *goRedisServer { return &goRedisServer{c, newPipeline(c)} }

// Reconnect lets later commands not wait for what is under way.
func (c *goRedisServer) Reconnect() { c.pipe.reconnect() }

func (c *goRedisServer) Do(ctx context.Context, args []string) (any, error) {
	a := c.DoAll(ctx, [][]string{args})[0]
	return a.Reply, a.Err
}

func (c *goRedisServer) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := newCommands(ctx, commands)
	if err := c.pipe.do(ctx, list); err != nil {
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

// Dedicated uses the user's pool.
func (c *goRedisServer) Dedicated(context.Context) (DedicatedConn, error) {
	return &goRedisConn{conn: c.client.Conn()}, nil
}

type goRedisConn struct {
	conn *redis.Conn
	lost bool // the library knows that it failed
}

func (c *goRedisConn) DoAll(ctx context.Context, commands [][]string) []Answer {
	list := newCommands(ctx, commands)
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

func newCommands(ctx context.Context, commands [][]string) []singleTry {
	list := make([]singleTry, len(commands))
	for i, words := range commands {
		args := make([]any, len(words))
		for k, w := range words {
			args[k] = w
		}
		list[i] = singleTry{redis.NewCmd(ctx, args...)}
	}
	return list
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

// Close leaves the client open, which is the user's.
func (c *goRedisServer) Close() {}

func (c *goRedisServer) Listen(ctx context.Context, on func(Event)) (Listener, error) {
	l := &goRedisListener{pubsub: c.client.Subscribe(ctx), done: make(chan struct{})}
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
