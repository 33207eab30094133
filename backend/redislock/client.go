package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// client is where commands go: to one server, or to one of several that has the key.
type client interface {
	// do sends one command to the server that has the key; to any if key is empty.
	// What the server refused without executing it, since another one has the key or
	// it is not ready, may be sent again; otherwise it is server.do.
	do(ctx context.Context, key string, args []string) (any, error)

	// doAll sends commands for one key, as server.doAll.
	doAll(ctx context.Context, key string, commands [][]string) []answer

	// at is the server that has the key now; any if key is empty.
	at(ctx context.Context, key string) (server, error)

	// all are the servers that have keys.
	all(ctx context.Context) ([]server, error)

	// slot says which commands may share a script: those for keys of the same slot.
	slot(key string) int

	// doubt says that a server does not seem to be the right one any more.
	doubt()

	// slotted reports whether different servers have different keys.
	slotted() bool

	// strict reports whether the servers refuse a script with keys of several slots.
	strict() bool

	// name is what Caps call the store.
	name() string

	// close frees what was made for us; the user's own client stays as it is.
	close()
}

// server is one Redis server, reached by a client library.
type server interface {
	// do sends one command, once: an answer that was lost is an error and not a
	// reason to send again. It returns when ctx ends. A later command is not executed
	// before one that was given up, as long as the connection lives, unless the error
	// is an *unanswered. An error that the server answered is a *replyError.
	//
	// The reply is an int64, a string, nil or a []any of these.
	do(ctx context.Context, args []string) (any, error)

	// doAll does the same with several commands, on one connection with none of
	// anybody else's between them. There is an answer for each.
	doAll(ctx context.Context, commands [][]string) []answer

	// conn gives the caller a connection of its own.
	conn(ctx context.Context) (conn, error)

	// listen opens a connection for subscriptions. Its events go to on, one after
	// the other; after close or a failure there are no more.
	listen(ctx context.Context, on func(event)) (listener, error)

	// name is scheme, address and database.
	name() string

	close()
}

// conn is a connection that nobody else uses. It is for one caller at a time.
type conn interface {
	// doAll is as server.doAll. An error that is no *replyError breaks the connection.
	doAll(ctx context.Context, commands [][]string) []answer

	// close gives it back; a broken one is thrown away.
	close(broken bool)
}

// answer is what became of one command.
type answer struct {
	reply any
	err   error
}

// answers are n times the same.
func answers(n int, a answer) []answer {
	list := make([]answer, n)
	for i := range list {
		list[i] = a
	}
	return list
}

func firstError(list []answer) error {
	for _, a := range list {
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

// lostError is the first error that the server did not answer.
func lostError(list []answer) error {
	for _, a := range list {
		if _, is := asReply(a.err); a.err != nil && !is {
			return a.err
		}
	}
	return nil
}

// single is the client of one server.
type single struct{ server }

func (s single) do(ctx context.Context, _ string, args []string) (reply any, err error) {
	again(ctx, func() verdict {
		var why verdict
		reply, err = s.server.do(ctx, args)
		why, _ = verdictOf(err)
		return why
	})
	return reply, lonely(err)
}

func (s single) doAll(ctx context.Context, _ string, commands [][]string) (got []answer) {
	again(ctx, func() verdict {
		got = s.server.doAll(ctx, commands)
		why, _ := verdictOfAll(commands, got)
		return why
	})
	for i := range got {
		got[i].err = lonely(got[i].err)
	}
	return got
}

// again sends once more what the server was not ready for.
func again(ctx context.Context, send func() verdict) {
	var p pauses
	for sent := 1; send() == notNow && sent < mostSends && p.wait(ctx); sent++ {
	}
}

// lonely explains what a server says that has others beside it.
func lonely(err error) error {
	if err == nil {
		return nil
	}
	if re, is := asReply(err); is && (re.is("MOVED") || re.is("ASK") || re.is("CROSSSLOT")) {
		return fmt.Errorf("%w: the server is part of a Redis Cluster: want redis+cluster://, or a client for clusters: %w", driver.ErrInvalid, re)
	}
	return err
}

func (s single) slot(string) int { return 0 }
func (s single) strict() bool    { return false }
func (s single) slotted() bool   { return false }
func (s single) doubt()          {}

func (s single) at(context.Context, string) (server, error) { return s.server, nil }
func (s single) all(context.Context) ([]server, error)      { return []server{s.server}, nil }

// doubt: a request to the server that has the key has had no answer for too long.
func doubt(c client, key string) {
	at, err := c.at(context.Background(), key)
	if err != nil {
		return
	}
	if s, ok := at.(interface{ doubt() }); ok {
		s.doubt()
	}
}

// listener is a connection for subscriptions. What comes of a call is an event.
type listener interface {
	subscribe(ctx context.Context, sharded bool, channels []string) error
	unsubscribe(ctx context.Context, sharded bool, channels []string) error
	close()
}

// event is what a listener reports: exactly one of a confirmed subscription, a
// message, and the error that ended the connection.
type event struct {
	kind             eventKind
	channel, message string
	sharded          bool
	err              error
}

type eventKind uint8

const (
	confirmed eventKind = iota + 1
	received
	ended // a subscription, asked or not
	broken
)

// replyError is an error that the server answered.
type replyError struct {
	text  string
	cause error // the library's
}

func (e *replyError) Error() string { return "redis: " + e.text }
func (e *replyError) Unwrap() error { return e.cause }

// asReply is the server's error in err, if it is one.
func asReply(err error) (*replyError, bool) {
	re := (*replyError)(nil)
	is := errors.As(err, &re)
	return re, is
}

// is reports whether the server's error has this code. A server before 7.0 puts what a
// script's command answered into the middle of the text.
func (e *replyError) is(code string) bool {
	return strings.HasPrefix(e.text, code+" ") || strings.Contains(e.text, ": "+code+" ")
}

// isUnknown reports whether the server doesn't know the command.
func (e *replyError) isUnknown() bool {
	return e.is("ERR") && strings.Contains(e.text, "unknown command")
}

// withoutScript leaves out where in a script an error happened, which is of no use to
// the user. A server before 7.0 says that first, a later one last.
func withoutScript(text string) string {
	if _, at, ok := strings.Cut(text, ": @user_script:"); ok {
		_, text, _ = strings.Cut(at, ": ")
	}
	text, _, _ = strings.Cut(text, " script: ")
	return text
}

// worded is an error in words for people. Its cause can be reached, but is not quoted.
type worded struct {
	text  string
	cause []error
}

func (e *worded) Error() string   { return e.text }
func (e *worded) Unwrap() []error { return e.cause }

// reworded is err in words for people.
func reworded(text string, err error) error { return &worded{text, []error{err}} }

// wrong is ErrInvalid in these words.
func wrong(text string, cause error) error {
	return &worded{driver.ErrInvalid.Error() + ": " + text, []error{driver.ErrInvalid, cause}}
}

// unanswered is the error of a caller that has given up on a command, which may still be
// executed until landed is closed.
type unanswered struct {
	error
	landed <-chan struct{}
}

func (u *unanswered) Unwrap() error { return u.error }

// explainServer turns the errors of a connection that are facts into such, and leaves the others,
// which say nothing of what became of the command.
func explainServer(err error) error {
	re, is := asReply(err)
	if !is || driver.Final(err) {
		return err
	}
	plain := &replyError{text: withoutScript(re.text), cause: re.cause}
	switch {
	case re.is("NOAUTH"):
		return wrong("the server wants a user or password, and was given none", re)
	case re.is("WRONGPASS"):
		return wrong("the server refuses this user or password", re)
	case strings.Contains(re.text, "DB index is out of range"):
		return wrong("the server has no database of this number", re)
	case re.is("READONLY"):
		return fmt.Errorf("the server is a replica, or has become one: %w", plain)
	case re.is("NOPERM"):
		return fmt.Errorf("%w: the server's user may not do this (docs/backends/redis.md lists what it needs): %w", driver.ErrInvalid, plain)
	}
	return err
}

// The schemes of servers' names, each also with TLS but the socket's.
const (
	toServer    = "redis"
	toSocket    = "redis+unix"
	toSentinels = "redis+sentinel"
	toCluster   = "redis+cluster"
)

// serverName names a server and its database.
func serverName(scheme, addr string, db int) string {
	return fmt.Sprintf("%s://%s/%d", scheme, addr, db)
}

// errUnexpected is that of an answer of another form than the command has.
var errUnexpected = errors.New("unexpected answer")

func textOf(v any) string  { s, _ := v.(string); return s }
func numberOf(v any) int64 { n, _ := v.(int64); return n }

// newSingle is the client of one server.
func newSingle(s server) client { return single{s} }

// sameError are n answers that failed for the same reason.
func sameError(n int, err error) []answer { return answers(n, answer{err: err}) }

// transient reports whether err says that a server did not execute the command, since another one
// has the key, or it is not ready.
func transient(err error) bool {
	why, _ := verdictOf(err)
	return why != executed
}

// errClientClosed is that of a user's client which is closed, or has closed its connections to a
// server for good.
var errClientClosed = errors.New("the client is closed")

// clientClosed makes a library's error errClientClosed too.
func clientClosed(err error) error { return closedError{err} }

type closedError struct{ error }

func (e closedError) Unwrap() error        { return e.error }
func (e closedError) Is(target error) bool { return target == errClientClosed }
