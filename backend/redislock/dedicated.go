package redislock

import (
	"context"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// dedicated calls f with a connection of its own to the server that has a key. f sends
// commands, and reports whether the server refused them because it is the wrong one: then
// dedicated finds the right one, and calls f again.
//
// If ctx ends first, the error is an *redisconn.UnansweredError. The connection may be one that a firewall
// has forgotten, so later calls go through new ones.
func dedicated(ctx context.Context, c redisconn.Client, key string, f func(send func([][]string) []redisconn.Answer) (misdirected bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began, done, result := time.Now(), make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for range maxTries {
			wrong := false
			if wrong, result = onConn(ctx, c, key, f); !wrong {
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

func onConn(ctx context.Context, c redisconn.Client, key string, f func(send func([][]string) []redisconn.Answer) (bool, error)) (misdirected bool, err error) {
	at, err := c.At(ctx, key)
	if err != nil {
		return false, err
	}
	conn, err := at.Dedicated(ctx)
	if err != nil {
		return false, err
	}
	broken := false
	// What was sent may be executed later: only the answer, or the connection's own timeout, is an end.
	sending := context.WithoutCancel(ctx)
	misdirected, err = f(func(commands [][]string) []redisconn.Answer {
		got := conn.DoAll(sending, commands)
		broken = broken || redisconn.TransportError(got) != nil
		return got
	})
	conn.Close(broken || misdirected)
	return misdirected, err
}

// misdirected reports whether a server refused commands, of which it executed none, because
// it is not, or not any more, the one that has the key.
func misdirected(got []redisconn.Answer) bool {
	if redisconn.TransportError(got) != nil {
		return false
	}
	for _, a := range got {
		if redisconn.NotExecuted(a.Err) {
			return true
		}
	}
	return false
}

// probe changes nothing, and succeeds at the server that has the key, and is a master.
func probe(ctx context.Context, c redisconn.Client, key string) error {
	_, err := c.Do(ctx, key, []string{"DEL", tagged(key) + probeSuffix})
	return explain(err)
}
