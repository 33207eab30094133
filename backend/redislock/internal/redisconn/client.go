// Package redisconn is the transport of package redislock. It takes keys, commands and channels, and
// returns replies, messages and errors. It knows nothing of locks.
//
// A Client finds the Server that has a key: the only one, one of a cluster, or the master that
// sentinels name. A Server sends commands once and never repeats one that may have been executed.
// It is reached by a client of our own (NewServer), which may have its options from a user's (FromGoRedis).
package redisconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Client sends commands to a single server, or to the one of several servers that has the key.
type Client interface {
	// Do sends a command to the server that has the key, or to any server if key is empty. It is
	// like Server.Do, but repeats a command that a server refused to execute because it is not
	// ready, or another server has the key.
	Do(ctx context.Context, key string, args []string) (any, error)

	// DoAll sends commands for one key, like Server.DoAll.
	DoAll(ctx context.Context, key string, commands [][]string) []Answer

	// At returns the server that has the key now, or any server if key is empty.
	At(ctx context.Context, key string) (Server, error)

	// All returns the servers that have keys.
	All(ctx context.Context) ([]Server, error)

	// Slot returns the key's slot. A script may have keys of one slot only.
	Slot(key string) int

	// Refresh begins to look up again which server has which keys.
	Refresh()

	// Slotted reports whether different servers have different keys, and refuse a script with keys of several slots.
	Slotted() bool

	// Name returns the name of the store.
	Name() string

	// Close closes all connections.
	Close()
}

// Server is a Redis server.
type Server interface {
	// Do sends a command once. It returns an error if the answer is lost, and when ctx ends. A
	// later command is executed after a command that was given up, unless the error of that is
	// an *UnansweredError. An error that the server answered is a *ReplyError.
	//
	// The reply is an int64, a string, nil or a []any of these.
	Do(ctx context.Context, args []string) (any, error)

	// DoAll sends several commands on one connection, without another caller's command
	// between them. It returns an answer for each.
	DoAll(ctx context.Context, commands [][]string) []Answer

	// Dedicated returns a connection that no other caller uses.
	Dedicated(ctx context.Context) (DedicatedConn, error)

	// Listen opens a connection for subscriptions. It calls on with one event after the other.
	// There are no more events after Close or a failure.
	Listen(ctx context.Context, on func(Event)) (Listener, error)

	Close()
}

// DedicatedConn is a connection for one caller at a time.
type DedicatedConn interface {
	// DoAll is like Server.DoAll. After an error that is no *ReplyError the connection is broken.
	DoAll(ctx context.Context, commands [][]string) []Answer

	// Close returns the connection to its pool, or closes it if it is broken.
	Close(broken bool)
}

// Answer is the reply to a command, or its error.
type Answer struct {
	Reply any
	Err   error
}

// FailAll returns n answers that failed with err.
func FailAll(n int, err error) []Answer { return slices.Repeat([]Answer{{Err: err}}, n) }

// Reconnect makes the server that has the key use new connections, since a request has had no answer
// for too long.
func Reconnect(c Client, key string) {
	at, err := c.At(context.Background(), key)
	if s, ok := at.(interface{ Reconnect() }); ok && err == nil {
		s.Reconnect()
	}
}

// Listener is a connection for subscriptions. The effect of a call is reported by an event. All
// sharded channels of a call must lie in one slot.
type Listener interface {
	Subscribe(ctx context.Context, sharded bool, channels []string) error
	Unsubscribe(ctx context.Context, sharded bool, channels []string) error
	Close()
}

// Event is reported by a Listener.
type Event struct {
	Kind             EventKind
	Channel, Message string
	Sharded          bool
	Err              error
}

// EventKind says what has happened.
type EventKind uint8

// The kinds of events.
const (
	Subscribed   EventKind = iota + 1 // the server has confirmed a subscription
	Received                          // a message
	Unsubscribed                      // a subscription has ended, requested or not
	Broken                            // the connection has ended, by Err
)

// The schemes of servers' names, each also with TLS but the socket's.
const (
	SchemeServer   = "redis"
	SchemeSocket   = "redis+unix"
	SchemeSentinel = "redis+sentinel"
	SchemeCluster  = "redis+cluster"
)

// ServerName returns the name of a server's database.
func ServerName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

// Text returns a reply's string.
func Text(v any) string { s, _ := v.(string); return s }

// Integer returns a reply's number.
func Integer(v any) int64 { n, _ := v.(int64); return n }

// List returns a reply's list.
func List(v any) []any { list, _ := v.([]any); return list }

// Texts returns the strings of a list.
func Texts(v any) []string {
	list := List(v)
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = Text(w)
	}
	return words
}

// ErrUnexpected is the error of a reply that has another form than the command's.
var ErrUnexpected = errors.New("unexpected answer")

// Expect fails the answers whose replies do not have the form of their commands': for each, a letter says which. An integer: i. A string, or
// none: s. A list, or none: l. The word OK, or none: o. What stands between us and a server may answer anything.
func Expect(got []Answer, forms string) {
	for i := range got {
		fits := got[i].Reply == nil
		switch r := got[i].Reply.(type) {
		case int64:
			fits = forms[i] == 'i'
		case string:
			fits = forms[i] == 's' || forms[i] == 'o' && r == "OK"
		case []any:
			fits = forms[i] == 'l'
		}
		if got[i].Err == nil && (!fits || forms[i] == 'i' && got[i].Reply == nil) {
			got[i].Err = ErrUnexpected
		}
	}
}

// PubSubMode says which commands publish and subscribe.
type PubSubMode uint32

// The modes.
const (
	PubSubUnknown PubSubMode = iota // until a server has been queried
	PubSubClassic                   // PUBLISH and SUBSCRIBE
	PubSubSharded                   // SPUBLISH and SSUBSCRIBE, which only a cluster has
)

// pubSubUnasked is PubSubClassic for the moment: the server did not let its user ask.
const pubSubUnasked = PubSubSharded + 1

// askAgain is how long that is so.
const askAgain = 10 * time.Second

// PubSub holds the mode of one Client. It never changes once a server has said it: messages must go on to be
// heard.
type PubSub struct {
	mode  atomic.Uint32
	asked atomic.Int64 // when pubSubUnasked was last noted, since began
	began time.Time
}

// NewPubSub returns a PubSub of this mode.
func NewPubSub(mode PubSubMode) *PubSub {
	p := &PubSub{began: time.Now()}
	p.mode.Store(uint32(mode))
	return p
}

// Mode returns the mode that is known.
func (p *PubSub) Mode() PubSubMode {
	if mode := PubSubMode(p.mode.Load()); mode != pubSubUnasked {
		return mode
	}
	return PubSubClassic
}

// Detect returns the mode. It queries a server if the mode is unknown, or was not answered a while ago.
func (p *PubSub) Detect(ctx context.Context, c Client) (PubSubMode, error) {
	switch mode := PubSubMode(p.mode.Load()); mode {
	case PubSubUnknown:
		return p.query(ctx, c)
	case pubSubUnasked:
		asked, now := p.asked.Load(), int64(time.Since(p.began))
		if now-asked > int64(askAgain) && p.asked.CompareAndSwap(asked, now) {
			_, _ = p.query(ctx, c) // without an answer the mode is what it was
		}
		return p.Mode(), nil
	default:
		return mode, nil
	}
}

// query asks a server for the mode. Only one that knows the question, or says that it does not, decides for good: one
// that is busy or refuses the user may answer otherwise in a moment. The query changes nothing, so it is
// repeated once: a connection that died unnoticed must not make the outcome unknown of the command that follows.
func (p *PubSub) query(ctx context.Context, c Client) (PubSubMode, error) {
	was := p.mode.Load()
	ask := func() (*ReplyError, error) {
		reply, err := c.Do(ctx, "", []string{"PUBSUB", "SHARDNUMSUB", "0"})
		if _, is := reply.([]any); !is && err == nil {
			err = ErrUnexpected
		}
		re, _ := AsReply(err)
		return re, err
	}
	re, err := ask()
	if err != nil && re == nil && ctx.Err() == nil {
		re, err = ask()
	}
	mode := PubSubSharded
	switch {
	case err == nil:
	case re == nil, Unexecuted(re) && !re.HasCode("NOPERM"):
		return PubSubUnknown, fmt.Errorf("asking whether messages are sharded: %w", err)
	case re.UnknownCommand():
		mode = PubSubClassic
	default:
		p.asked.Store(int64(time.Since(p.began)))
		mode = pubSubUnasked
	}
	p.mode.CompareAndSwap(was, uint32(mode))
	return p.Mode(), nil
}

// Publish returns the command that publishes a message.
func (p *PubSub) Publish(channel, message string) []string {
	if p.Mode() == PubSubSharded {
		return []string{"SPUBLISH", channel, message}
	}
	return []string{"PUBLISH", channel, message}
}
