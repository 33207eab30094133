package redisconn

import (
	"context"
	"fmt"
	"slices"
)

// Client is where commands go: to one server, or to one of several that has the key.
type Client interface {
	// Do sends one command to the server that has the key; to any if key is empty.
	// What the server refused without executing it, since another one has the key or
	// it is not ready, may be sent again; otherwise it is server.do.
	Do(ctx context.Context, key string, args []string) (any, error)

	// DoAll sends commands for one key, as server.DoAll.
	DoAll(ctx context.Context, key string, commands [][]string) []Answer

	// At is the server that has the key now; any if key is empty.
	At(ctx context.Context, key string) (Server, error)

	// All are the servers that have keys.
	All(ctx context.Context) ([]Server, error)

	// Slot says which commands may share a script: those for keys of the same slot.
	Slot(key string) int

	// Refresh says that a server does not seem to be the right one any more.
	Refresh()

	// Slotted reports whether different servers have different keys.
	Slotted() bool

	// Strict reports whether the servers refuse a script with keys of several slots.
	Strict() bool

	// Name is what Caps call the store.
	Name() string

	// Close frees what was made for us; the user's own client stays as it is.
	Close()
}

// Server is one Redis server, reached by a client library.
type Server interface {
	// Do sends one command, once: an answer that was lost is an error and not a
	// reason to send again. It returns when ctx ends. A later command is not executed
	// before one that was given up, as long as the connection lives, unless the error
	// is an *unanswered. An error that the server answered is a *ReplyError.
	//
	// The reply is an int64, a string, nil or a []any of these.
	Do(ctx context.Context, args []string) (any, error)

	// DoAll does the same with several commands, on one connection with none of
	// anybody else's between them. There is an answer for each.
	DoAll(ctx context.Context, commands [][]string) []Answer

	// Dedicated gives the caller a connection of its own.
	Dedicated(ctx context.Context) (DedicatedConn, error)

	// Listen opens a connection for subscriptions. Its events go to on, one after
	// the other; after close or a failure there are no more.
	Listen(ctx context.Context, on func(Event)) (Listener, error)

	// Name is scheme, address and database.
	Name() string

	Close()
}

// DedicatedConn is a connection that nobody else uses. It is for one caller at a time.
type DedicatedConn interface {
	// DoAll is as server.DoAll. An error that is no *ReplyError breaks the connection.
	DoAll(ctx context.Context, commands [][]string) []Answer

	// Close gives it back; a broken one is thrown away.
	Close(broken bool)
}

// Answer is what became of one command.
type Answer struct {
	Reply any
	Err   error
}

// FailAll returns n answers that failed with err.
func FailAll(n int, err error) []Answer { return slices.Repeat([]Answer{{Err: err}}, n) }

// Reconnect: a request to the server that has the key has had no answer for too long.
func Reconnect(c Client, key string) {
	at, err := c.At(context.Background(), key)
	if err != nil {
		return
	}
	if s, ok := at.(interface{ Reconnect() }); ok {
		s.Reconnect()
	}
}

// Listener is a connection for subscriptions. What comes of a call is an event.
//
// All sharded channels of a call lie in one slot.
type Listener interface {
	Subscribe(ctx context.Context, sharded bool, channels []string) error
	Unsubscribe(ctx context.Context, sharded bool, channels []string) error
	Close()
}

// Event is what a listener reports: exactly one of a confirmed subscription, a
// message, and the error that ended the connection.
type Event struct {
	Kind             EventKind
	Channel, Message string
	Sharded          bool
	Err              error
}

type EventKind uint8

const (
	Subscribed EventKind = iota + 1
	Received
	Unsubscribed // a subscription, asked or not
	Broken
)

// SubscriptionEvent returns the event of a server's push, whose kind is "subscribe" or such. The event
// of one that is of no interest has no kind.
func SubscriptionEvent(kind, channel string) Event {
	kinds := map[string]EventKind{"subscribe": Subscribed, "ssubscribe": Subscribed, "unsubscribe": Unsubscribed, "sunsubscribe": Unsubscribed}
	return Event{Kind: kinds[kind], Channel: channel, Sharded: kind == "ssubscribe" || kind == "sunsubscribe"}
}

// The schemes of servers' names, each also with TLS but the socket's.
const (
	SchemeServer   = "redis"
	SchemeSocket   = "redis+unix"
	SchemeSentinel = "redis+sentinel"
	SchemeCluster  = "redis+cluster"
)

// ServerName names a server and its database.
func ServerName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

func textOf(v any) string { s, _ := v.(string); return s }

func numberOf(v any) int64 { n, _ := v.(int64); return n }
