package redisconn

import (
	"context"
	"time"
)

// MaxTries is how often a change is tried again because a key was changed meanwhile, or another
// server has it.
const MaxTries = 5

// Sender sends commands on one connection.
type Sender func(commands [][]string) []Answer

// Dedicated calls f with a connection of its own to the server that has a key. If f returns a
// server's refusal to execute, because it is the wrong server, Dedicated finds the right one and calls
// f again. none is a key of the same slot that never exists.
//
// If ctx ends first, the error is an *UnansweredError. The connection may be one that a firewall
// has forgotten, so later calls go through new ones.
func Dedicated(ctx context.Context, c Client, key, none string, f func(send Sender) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began, done, result := time.Now(), make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for range MaxTries {
			if result = onConn(ctx, c, key, f); !NotExecuted(result) {
				return
			}
			if err := Probe(ctx, c, none); err != nil {
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
			go Reconnect(c, key)
		}
		return &UnansweredError{Err: ctx.Err(), Done: done}
	}
}

func onConn(ctx context.Context, c Client, key string, f func(send Sender) error) error {
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
	err = f(func(commands [][]string) []Answer {
		got := conn.DoAll(sending, commands)
		broken = broken || TransportError(got) != nil
		return got
	})
	conn.Close(broken || NotExecuted(err))
	return err
}

// Probe changes nothing, and succeeds at the server that has the slot of a key that never exists, and is a master.
func Probe(ctx context.Context, c Client, none string) error {
	reply, err := c.Do(ctx, none, []string{"DEL", none})
	if _, is := reply.(int64); !is && err == nil {
		err = ErrUnexpected
	}
	return Explain(err)
}
