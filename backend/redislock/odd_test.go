package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// oddClient answers the command at one place otherwise than the server has.
type oddClient struct {
	redisconn.Client
	*oddAnswer
}

// oddAnswer takes the place of the answer to the n-th command from now on. Without executing the command, or beside it.
type oddAnswer struct {
	n        atomic.Int64
	answer   redisconn.Answer
	executed bool
	verb     string // of the command at that place; "": it was not reached
}

// send sends all commands but the one whose answer is odd.
func (o *oddAnswer) send(commands [][]string, send func([][]string) []redisconn.Answer) []redisconn.Answer {
	odd := int(o.n.Add(-int64(len(commands)))) + len(commands)
	if odd < 0 || odd >= len(commands) {
		return send(commands)
	}
	o.verb = commands[odd][0]
	rest := commands
	if !o.executed {
		rest = slices.Delete(slices.Clone(commands), odd, odd+1)
	}
	var got []redisconn.Answer
	if len(rest) > 0 {
		got = send(rest)
	}
	if o.executed {
		got[odd] = o.answer
		return got
	}
	return slices.Insert(got, odd, o.answer)
}

func (c oddClient) Do(ctx context.Context, key string, args []string) (any, error) {
	got := c.send([][]string{args}, func(commands [][]string) []redisconn.Answer {
		reply, err := c.Client.Do(ctx, key, args)
		return []redisconn.Answer{{Reply: reply, Err: err}}
	})
	return got[0].Reply, got[0].Err
}

func (c oddClient) DoAll(ctx context.Context, key string, commands [][]string) []redisconn.Answer {
	return c.send(commands, func(some [][]string) []redisconn.Answer { return c.Client.DoAll(ctx, key, some) })
}

func (c oddClient) At(ctx context.Context, key string) (redisconn.Server, error) {
	s, err := c.Client.At(ctx, key)
	return oddServer{s, c.oddAnswer}, err
}

type oddServer struct {
	redisconn.Server
	*oddAnswer
}

func (s oddServer) Dedicated(ctx context.Context) (redisconn.DedicatedConn, error) {
	conn, err := s.Server.Dedicated(ctx)
	return oddConn{conn, s.oddAnswer}, err
}

type oddConn struct {
	redisconn.DedicatedConn
	*oddAnswer
}

func (c oddConn) DoAll(ctx context.Context, commands [][]string) []redisconn.Answer {
	return c.send(commands, func(some [][]string) []redisconn.Answer { return c.DedicatedConn.DoAll(ctx, some) })
}

// oddReplies are answers that no command of ours has, but for those in usual.
var oddReplies = []any{"QUEUED", "zz", int64(7), int64(-1), nil, []any{}, []any{"a"}, []any{nil, "a"}, []any{int64(1), int64(1)}, []any{int64(1), "a", int64(1)}}

// usual reports whether a command may have such an answer: then nobody can know that it is odd.
func usual(verb string, reply any) bool {
	_, text := reply.(string)
	_, number := reply.(int64)
	list, isList := reply.([]any)
	switch verb {
	case "GET", "XADD":
		return text || reply == nil
	case "SET":
		return reply == nil
	case "EXISTS", "PTTL", "PUBLISH", "TIME":
		return number
	case "MGET", "LRANGE":
		return isList || reply == nil
	case "EXEC":
		return reply == nil || isList && len(list) == 0
	case "UNWATCH", "LINDEX", "MULTI", "PEXPIRE": // nobody reads that
		return true
	}
	return false
}

// oddCase is a call at which an answer is odd.
type oddCase struct {
	call   string
	mode   driver.Mode
	opts   Options
	server string
}

func (c oddCase) String() string {
	return fmt.Sprintf("%s/%v/%s%s/%s", c.call, c.mode, c.opts.Layout, c.opts.Scripts, c.server)
}

func oddCases() []oddCase {
	var cases []oddCase
	for _, call := range []string{"acquire", "again", "held", "renew", "release"} {
		for _, opts := range []Options{{}, {Layout: Redisson}, {Scripts: ScriptsOff}} {
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
				if opts.Scripts != ScriptsOff || mode == driver.Exclusive {
					cases = append(cases, oddCase{call, mode, opts, "redis"})
				}
				if call == "release" && opts == (Options{}) && mode.Alone() { // by DELIFEQ
					cases = append(cases, oddCase{call, mode, opts, "valkey"})
				}
			}
		}
	}
	return cases
}

// Only the answers that a command can have are facts about a lock.
func TestOddAnswersAreNoFacts(t *testing.T) {
	servers := map[string]*testserver.RedisServer{"redis": testserver.SharedRedis(t), "valkey": testserver.Valkey(t)}
	sideBySide(t, oddCases(), func(t *testing.T, c oddCase) {
		srv := servers[c.server]
		b, direct := openOwn(t, srv.Addr(), c.opts), openOwn(t, srv.Addr(), c.opts)
		warm(t, b, c.mode)
		seen := 0
		for place := 0; ; place++ {
			reached := false
			for _, reply := range oddReplies {
				for _, executed := range []bool{false, true} {
					odd := &oddAnswer{answer: redisconn.Answer{Reply: reply}, executed: executed}
					odd.n.Store(1 << 40)
					sendThrough(b, oddClient{b.client, odd})
					if s, is := b.storage.(*uncontended); is {
						s.acquires.Store(true) // by plain commands
					}
					lie := c.run(t, b, direct, func() { odd.n.Store(int64(place)) })
					sendThrough(b, b.client.(oddClient).Client)
					reached = reached || odd.verb != ""
					if odd.verb != "" && !usual(odd.verb, reply) {
						if seen++; lie != "" {
							t.Errorf("command %d, %s, answers %#v, executed: %v: %s", place, odd.verb, reply, executed, lie)
						}
					}
				}
			}
			if !reached {
				break
			}
		}
		if seen == 0 {
			t.Error("no answer was odd")
		}
	})
}

// run calls b once, and returns what is not so of what it says.
func (c oddCase) run(t *testing.T, b, direct *Backend, on func()) string {
	ctx, r := t.Context(), request("", c.mode)
	defer func() { direct.Release(ctx, r.Hold) }()
	other := request(r.Name, driver.Exclusive)
	if c.call == "held" {
		if other.Mode = c.mode; c.mode == driver.Read {
			other.Mode = driver.Write
		}
		other.Limit, r.Limit = 1, 1
		acquire(t, direct, other)
		defer func() { release(t, direct, other) }()
	} else if c.call != "acquire" {
		acquire(t, direct, r)
	}
	on()
	var err error
	switch c.call {
	case "renew":
		err = b.Renew(ctx, []driver.Hold{r.Hold})[0]
	case "release":
		err = b.Release(ctx, r.Hold)
	default:
		_, err = b.Acquire(ctx, r)
	}
	info := must.Get(direct.Inspect(ctx, r.Name))(t)
	holds := slices.ContainsFunc(info.Holders, func(h driver.Holder) bool { return h.Owner == r.Owner })
	switch {
	case driver.Final(err):
		return fmt.Sprintf("a final error: %v", err)
	case errors.Is(err, driver.ErrUnsent) && c.call == "acquire" && holds:
		return fmt.Sprintf("nothing was sent, and it holds: %v", err)
	case c.call == "release" && (errors.Is(err, driver.ErrLost) || err == nil && holds):
		return fmt.Sprintf("released: %v; still held: %v", err, holds)
	case c.call == "renew" && (errors.Is(err, driver.ErrLost) || err == nil && !holds):
		return fmt.Sprintf("renewed: %v; held: %v", err, holds)
	case (c.call == "acquire" || c.call == "again" || c.call == "held") && (err == nil && !holds || errors.Is(err, driver.ErrHeld) && holds):
		return fmt.Sprintf("acquired: %v; held: %v", err, holds)
	}
	return ""
}
