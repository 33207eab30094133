package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

func (r replicas) command() []string {
	return []string{"WAIT", strconv.Itoa(r.need), millis(r.timeout)}
}

// check reads WAIT's answer.
func (r replicas) check(a redisconn.Answer) error {
	if a.Err != nil {
		return fmt.Errorf("asking the replicas: %w", redisconn.Explain(a.Err))
	}
	if have := integer(a.Reply); have < int64(r.need) {
		// This is no fact about the lock: a failover may keep or lose it.
		return fmt.Errorf("%d of %d replicas have it after %v", have, r.need, r.timeout)
	}
	return nil
}

// ready finds out whether the server has WAIT and lets it be used, before a lock
// depends on it. Too few replicas are no error: more may come.
func (r replicas) ready(ctx context.Context, c redisconn.Client) error {
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
type acknowledged struct{ scripted }

// acquire releases at once what too few replicas have, so that other clients can try.
//
// A reader's lock is kept: the reader may have been a writer, which still relies on its hold
// and retries.
func (s acknowledged) acquire(ctx context.Context, rec *recipe, r driver.Request) (driver.Grant, error) {
	reply, missing, err := s.runAcked(ctx, rec.acquire, s.acquireCall(rec, r))
	if err != nil {
		return driver.Grant{}, s.faultOf(r.Name, notTaken(err))
	}
	if _, granted := reply.(string); granted && missing != nil {
		if r.Mode == driver.Read {
			return driver.Grant{}, errors.New(missing.Error()) // not final: it was taken
		}
		return driver.Grant{}, giveBack(ctx, s, rec, r, missing)
	}
	return s.outcome(ctx, rec, r, reply)
}

func (s acknowledged) renew(ctx context.Context, x renewBatch) []error {
	reply, missing, err := s.runAcked(ctx, x.recipe.renew, s.renewCall(x))
	if err == nil {
		err = missing
	}
	return renewals(x, reply, err)
}

// runAcked runs a script; missing says that too few replicas acknowledged it.
func (s acknowledged) runAcked(ctx context.Context, script *script, c call) (reply any, missing, err error) {
	var acks redisconn.Answer
	reply, err = s.runBy(ctx, script, c, func(command []string) (any, error) {
		got := sendAcked(ctx, s.client, c.routingKey(), [][]string{command, s.replicas.command()})
		acks = got[1]
		return got[0].Reply, got[0].Err
	})
	if err != nil {
		return nil, nil, err
	}
	return reply, s.replicas.check(acks), nil
}

// sendAcked sends commands, of which the last is WAIT. They have a connection of their own, which
// WAIT blocks; in a cluster they share the connection of all commands.
func sendAcked(ctx context.Context, c redisconn.Client, key string, commands [][]string) []redisconn.Answer {
	if c.Slotted() {
		return c.DoAll(ctx, key, commands)
	}
	var got []redisconn.Answer
	err := dedicated(ctx, c, key, func(send sender) error {
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
