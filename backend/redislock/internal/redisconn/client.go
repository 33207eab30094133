package redisconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distlock/distlock/driver"
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

func FirstError(list []Answer) error {
	for _, a := range list {
		if a.Err != nil {
			return a.Err
		}
	}
	return nil
}

// TransportError is the first error that the server did not answer.
func TransportError(list []Answer) error {
	for _, a := range list {
		if _, is := AsReply(a.Err); a.Err != nil && !is {
			return a.Err
		}
	}
	return nil
}

// singleClient is the client of one server.
type singleClient struct{ Server }

func (s singleClient) Do(ctx context.Context, _ string, args []string) (reply any, err error) {
	retryNotReady(ctx, func() redirection {
		var why redirection
		reply, err = s.Server.Do(ctx, args)
		why, _ = redirectionOf(err)
		return why
	})
	return reply, explainSingle(err)
}

func (s singleClient) DoAll(ctx context.Context, _ string, commands [][]string) (got []Answer) {
	retryNotReady(ctx, func() redirection {
		got = s.Server.DoAll(ctx, commands)
		why, _ := redirectionOfAll(commands, got)
		return why
	})
	for i := range got {
		got[i].Err = explainSingle(got[i].Err)
	}
	return got
}

// retryNotReady sends once more what the server was not ready for.
func retryNotReady(ctx context.Context, send func() redirection) {
	var p retryPauses
	for sent := 1; send() == notReady && sent < maxSends && p.wait(ctx); sent++ {
	}
}

// explainSingle explains what a server says that has others beside it.
func explainSingle(err error) error {
	if err == nil {
		return nil
	}
	if re, is := AsReply(err); is && (re.HasCode("MOVED") || re.HasCode("ASK") || re.HasCode("CROSSSLOT")) {
		return fmt.Errorf("%w: the server is part of a Redis Cluster: want redis+cluster://, or a client for clusters: %w", driver.ErrInvalid, re)
	}
	return err
}

func (s singleClient) Slot(string) int { return 0 }
func (s singleClient) Strict() bool    { return false }
func (s singleClient) Slotted() bool   { return false }
func (s singleClient) Refresh()        {}

func (s singleClient) At(context.Context, string) (Server, error) { return s.Server, nil }
func (s singleClient) All(context.Context) ([]Server, error)      { return []Server{s.Server}, nil }

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

// ReplyError is an error that the server answered.
type ReplyError struct {
	Text  string
	Cause error // the library's
}

func (e *ReplyError) Error() string { return "redis: " + e.Text }
func (e *ReplyError) Unwrap() error { return e.Cause }

// AsReply is the server's error in err, if it is one.
func AsReply(err error) (*ReplyError, bool) {
	re := (*ReplyError)(nil)
	is := errors.As(err, &re)
	return re, is
}

// HasCode reports whether the server's error has this code. A server before 7.0 puts what a
// script's command answered into the middle of the text.
func (e *ReplyError) HasCode(code string) bool {
	return strings.HasPrefix(e.Text, code+" ") || strings.Contains(e.Text, ": "+code+" ")
}

// UnknownCommand reports whether the server doesn't know the command.
func (e *ReplyError) UnknownCommand() bool {
	return e.HasCode("ERR") && strings.Contains(e.Text, "unknown command")
}

// WithoutScript leaves out where in a script an error happened, which is of no use to
// the user. A server before 7.0 says that first, a later one last.
func WithoutScript(text string) string {
	if _, at, ok := strings.Cut(text, ": @user_script:"); ok {
		_, text, _ = strings.Cut(at, ": ")
	}
	text, _, _ = strings.Cut(text, " script: ")
	return text
}

// rewordedError is an error in words for people. Its cause can be reached, but is not quoted.
type rewordedError struct {
	text  string
	cause []error
}

func (e *rewordedError) Error() string   { return e.text }
func (e *rewordedError) Unwrap() []error { return e.cause }

// Reworded is err in words for people.
func Reworded(text string, err error) error { return &rewordedError{text, []error{err}} }

// Invalid is ErrInvalid in these words.
func Invalid(text string, cause error) error {
	return &rewordedError{driver.ErrInvalid.Error() + ": " + text, []error{driver.ErrInvalid, cause}}
}

// UnansweredError is the error of a caller that has given up on a command, which may still be
// executed until Done is closed.
type UnansweredError struct {
	Err  error
	Done <-chan struct{}
}

func (u *UnansweredError) Error() string { return u.Err.Error() }
func (u *UnansweredError) Unwrap() error { return u.Err }

// Explain turns the errors of a connection that are facts into such, and leaves the others,
// which say nothing of what became of the command.
func Explain(err error) error {
	re, is := AsReply(err)
	if !is || driver.Final(err) {
		return err
	}
	plain := &ReplyError{Text: WithoutScript(re.Text), Cause: re.Cause}
	switch {
	case re.HasCode("NOAUTH"):
		return Invalid("the server wants a user or password, and was given none", re)
	case re.HasCode("WRONGPASS"):
		return Invalid("the server refuses this user or password", re)
	case strings.Contains(re.Text, "DB index is out of range"):
		return Invalid("the server has no database of this number", re)
	case re.HasCode("READONLY"):
		return fmt.Errorf("the server is a replica, or has become one: %w", plain)
	case re.HasCode("NOPERM"):
		return fmt.Errorf("%w: the server's user may not do this (docs/backends/redis.md lists what it needs): %w", driver.ErrInvalid, plain)
	}
	return err
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

// errUnexpected is that of an answer of another form than the command has.
var errUnexpected = errors.New("unexpected answer")

func textOf(v any) string  { s, _ := v.(string); return s }
func numberOf(v any) int64 { n, _ := v.(int64); return n }

// NewSingle is the client of one server.
func NewSingle(s Server) Client { return singleClient{s} }

// NotExecuted reports whether err says that a server did not execute the command, since another one
// has the key, or it is not ready.
func NotExecuted(err error) bool {
	why, _ := redirectionOf(err)
	return why != executed
}

// ErrClientClosed is that of a user's client which is closed, or has closed its connections to a
// server for good.
var ErrClientClosed = errors.New("the client is closed")

// ClientClosed makes a library's error ErrClientClosed too.
func ClientClosed(err error) error { return closedError{err} }

type closedError struct{ error }

func (e closedError) Unwrap() error        { return e.error }
func (e closedError) Is(target error) bool { return target == ErrClientClosed }
