package redislock

import (
	"context"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// maxTries is how often a change is tried again because a key was changed meanwhile, or another
// server has it.
const maxTries = 5

// sender sends commands on one connection.
type sender func(commands [][]string) []redisconn.Answer

// dedicated calls f with a connection of its own to the server that has a key. If f returns a
// server's refusal to execute, because it is the wrong server, dedicated finds the right one and calls
// f again.
//
// If ctx ends first, the error is an *redisconn.UnansweredError. The connection may be one that a firewall
// has forgotten, so later calls go through new ones.
func dedicated(ctx context.Context, c redisconn.Client, key string, f func(send sender) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began, done, result := time.Now(), make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for range maxTries {
			if result = onConn(ctx, c, key, f); !redisconn.NotExecuted(result) {
				return
			}
			if err := probe(ctx, c, key); err != nil {
				result = err
				return
			}
		}
	}()
	select {
	case <-done:
		return result
	case <-ctx.Done():
		if time.Since(began) >= 100*time.Millisecond {
			go redisconn.Reconnect(c, key)
		}
		return &redisconn.UnansweredError{Err: ctx.Err(), Done: done}
	}
}

func onConn(ctx context.Context, c redisconn.Client, key string, f func(send sender) error) error {
	at, err := c.At(ctx, key)
	if err != nil {
		return err
	}
	conn, err := at.Dedicated(ctx)
	if err != nil {
		return err
	}
	broken := false
	// A command that was sent may be executed later, until it is answered or the connection times out.
	sending := context.WithoutCancel(ctx)
	err = f(func(commands [][]string) []redisconn.Answer {
		got := conn.DoAll(sending, commands)
		broken = broken || redisconn.TransportError(got) != nil
		return got
	})
	conn.Close(broken || redisconn.NotExecuted(err))
	return err
}

// probe changes nothing, and succeeds at the server that has the key, and is a master.
func probe(ctx context.Context, c redisconn.Client, key string) error {
	_, err := c.Do(ctx, key, []string{"DEL", tagged(key) + probeSuffix})
	return explain(err)
}
