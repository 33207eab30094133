package redislock

import (
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

// oddAnswer takes the place of the answer to the n-th command from now on. Without executing the command, or beside it.
type oddAnswer struct {
	n        atomic.Int64
	reply    any
	executed bool
	verb     atomic.Value // of the command at that place; nil: it was not reached
}

func (o *oddAnswer) answer(command []string, send func(...string) redisconn.Answer) redisconn.Answer {
	if o.n.Add(-1) != -1 {
		return send(command...)
	}
	o.verb.Store(command[0])
	if o.executed {
		send(command...)
	}
	return redisconn.Answer{Reply: o.reply}
}

// oddReplies are answers that no command of ours has, but for those in usual.
var oddReplies = []any{"QUEUED", "zz", int64(7), int64(-1), nil, []any{}, []any{"a"}, []any{nil, "a"}, []any{int64(1), int64(1)}, []any{int64(1), "a"}, []any{int64(1), "a", int64(2)}, []any{int64(1), nil, nil}, []any{int64(1), "a", int64(1), int64(1)}}

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
		b, relay := openRelayed(t, srv.Addr(), c.opts)
		direct := openOwn(t, srv.Addr(), c.opts)
		warm(t, b, c.mode)
		seen := 0
		for place := 0; ; place++ {
			reached := false
			for _, reply := range oddReplies {
				for _, executed := range []bool{false, true} {
					odd := &oddAnswer{reply: reply, executed: executed}
					odd.n.Store(1 << 40)
					relay.handle(odd.answer)
					if _, is := b.storage.(*uncontended); is { // which asks the server anew how it deletes
						s := newUncontended(b)
						s.acquires.Store(true) // by plain commands
						b.storage = s
					}
					lie := c.run(t, b, direct, func() { odd.n.Store(int64(place)) })
					verb, at := odd.verb.Load().(string)
					reached = reached || at
					if at && !usual(verb, reply) {
						if seen++; lie != "" {
							t.Errorf("command %d, %s, answers %#v, executed: %v: %s", place, verb, reply, executed, lie)
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
