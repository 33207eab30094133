package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

func (r replicas) command() []string {
	return []string{"WAIT", strconv.Itoa(r.need), layouts.Millis(r.timeout)}
}

// check reads WAIT's answer.
func (r replicas) check(a redisconn.Answer) error {
	if a.Err != nil {
		return fmt.Errorf("asking the replicas: %w", redisconn.Explain(a.Err))
	}
	if have := redisconn.Integer(a.Reply); have < int64(r.need) {
		// This is no fact about the lock: a failover may keep or lose it.
		return fmt.Errorf("%d of %d replicas have it after %v", have, r.need, r.timeout)
	}
	return nil
}

// ready finds out whether the server has WAIT and lets it be used, before a lock
// depends on it. Too few replicas are no error: more may come.
func (r replicas) ready(ctx context.Context, c *redisconn.Client) error {
	if r.need == 0 {
		return nil
	}
	_, err := c.Do(ctx, "", []string{"WAIT", "0", "1"})
	if re, is := redisconn.AsReply(err); is && re.UnknownCommand() {
		return fmt.Errorf("%w: the server can't wait for replicas: %w", driver.ErrUnsupported, err)
	}
	return err
}

// acknowledged is scripted with acknowledgement by replicas. Releases need none.
type acknowledged struct {
	*scripted
	acked *scripted // whose scripts are acknowledged
}

func newAcknowledged(b *Backend) acknowledged {
	s := acknowledged{newScripted(b), newScripted(b)}
	s.acked.send = func(ctx context.Context, key string, command []string) (any, error) {
		got := sendAcked(ctx, b.client, key, [][]string{command, b.replicas.command()})
		if got[0].Err != nil {
			return nil, got[0].Err
		}
		return got[0].Reply, b.replicas.check(got[1])
	}
	return s
}

// Acquire returns what too few replicas have as taken, so that it is released at once and other clients can try.
//
// A reader's lock is kept: the reader may have been a writer, which still relies on its hold
// and retries.
func (s acknowledged) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	keys, args := s.acquiring(r)
	reply, err := s.acked.run(ctx, s.scripts[r.Mode].acquire, keys, args)
	_, granted := reply.(string)
	switch {
	case err == nil || reply != nil && !granted:
		return s.outcome(r, reply)
	case !granted:
		return driver.Grant{}, faultOf(s.layout.Prefix+r.Name, redisconn.MarkUnsent(err))
	case r.Mode == driver.Read:
		return driver.Grant{}, errors.New(err.Error()) // not final: it was taken
	}
	return driver.Grant{TTL: r.TTL}, err
}

// Renew fails what too few replicas acknowledge.
func (s acknowledged) Renew(ctx context.Context, holds []driver.Hold) []error {
	return s.acked.Renew(ctx, holds)
}

// sendAcked sends commands, of which the last is WAIT. They have a connection of their own, which
// WAIT blocks; in a cluster they share the connection of all commands.
func sendAcked(ctx context.Context, c *redisconn.Client, key string, commands [][]string) []redisconn.Answer {
	if c.Slotted() {
		return c.DoAll(ctx, key, commands)
	}
	var got []redisconn.Answer
	err := redisconn.Dedicated(ctx, c, key, layouts.ProbeKey(key), func(send redisconn.Sender) error {
		if got = send(commands); redisconn.NotExecuted(got[0].Err) {
			return got[0].Err
		}
		return nil
	})
	if err != nil {
		return redisconn.FailAll(len(commands), err)
	}
	return got
}
