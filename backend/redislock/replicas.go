package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

const (
	defaultReplicaTimeout = time.Second
	maxReplicas           = 1000
)

// replicas are how many copies a lock needs beside the master's before it counts.
//
// Redis answers before its replicas know. WAIT, behind a write and on its connection,
// answers how many of them know by now. It keeps other commands of that connection
// waiting, as long as it waits itself.
type replicas struct {
	need    int
	timeout time.Duration
}

func newReplicas(o *Options) (replicas, error) {
	r := replicas{o.Replicas, o.ReplicaTimeout}
	if r.need < 0 || r.need > maxReplicas || r.timeout < 0 {
		return r, fmt.Errorf("%w: %d replicas within %v: want 0 to %d, and no negative timeout", driver.ErrInvalid, r.need, r.timeout, maxReplicas)
	}
	if r.timeout > 0 && r.need == 0 {
		return r, fmt.Errorf("%w: a replica timeout of %v, and no replicas to wait for", driver.ErrInvalid, r.timeout)
	}
	if r.timeout == 0 {
		r.timeout = defaultReplicaTimeout
	}
	return r, nil
}

// within checks that an answer which comes as late as it may is still waited for.
func (r replicas) within(timeout time.Duration) error {
	if r.need > 0 && timeout > 0 && r.timeout >= timeout {
		return fmt.Errorf("%w: a replica timeout of %v: want less than %v, which is how long the client waits for an answer", driver.ErrInvalid, r.timeout, timeout)
	}
	return nil
}

func (r replicas) command() []string {
	return []string{"WAIT", strconv.Itoa(r.need), millis(r.timeout)}
}

// check reads WAIT's answer.
func (r replicas) check(a redisconn.Answer) error {
	if a.Err != nil {
		return fmt.Errorf("asking the replicas: %w", explain(a.Err))
	}
	if have := integer(a.Reply); have < int64(r.need) {
		return &shortage{have: have, replicas: r}
	}
	return nil
}

// shortage says that too few replicas have what was written. It is no fact about the
// lock: nobody knows what a failover would make of it.
type shortage struct {
	have int64
	replicas
}

func (s *shortage) Error() string {
	return fmt.Sprintf("%d of %d replicas have it after %v", s.have, s.need, s.timeout)
}

// runAcked runs a script, and tells besides what is missing of the replicas.
func (b *Backend) runAcked(ctx context.Context, s *script, keys, args []string) (reply any, missing, err error) {
	if b.replicas.need == 0 {
		reply, err = b.run(ctx, s, keys, args)
		return reply, nil, err
	}
	var acks redisconn.Answer
	reply, err = b.runBy(ctx, s, keys, args, func(command []string) (any, error) {
		got := b.sendAcked(ctx, keys[0], command)
		acks = got[1]
		return got[0].Reply, got[0].Err
	})
	if err != nil {
		return nil, nil, err
	}
	return reply, b.replicas.check(acks), nil
}

// sendAcked sends a command and WAIT. A connection does nothing else while WAIT waits, so
// they have one of their own; in a cluster they share that of all commands.
func (b *Backend) sendAcked(ctx context.Context, key string, command []string) []redisconn.Answer {
	commands := [][]string{command, b.replicas.command()}
	if b.client.Slotted() {
		return b.client.DoAll(ctx, key, commands)
	}
	var got []redisconn.Answer
	err := dedicated(ctx, b.client, key, func(send func([][]string) []redisconn.Answer) (bool, error) {
		got = send(commands)
		return redisconn.NotExecuted(got[0].Err), nil
	})
	if err != nil {
		return redisconn.FailAll(2, err)
	}
	return got
}

// take runs the script that takes, and gives back at once what too few replicas have, so
// that others can try.
//
// A reader's is kept: it may have been a writer until now, who goes on believing in its
// hold, and asks again.
func (b *Backend) take(ctx context.Context, rec *recipe, r driver.Request) (any, error) {
	keys, args := b.takeCall(rec, r)
	reply, missing, err := b.runAcked(ctx, rec.take, keys, args)
	if err != nil || missing == nil || !granted(reply) {
		return reply, unsent.Mark(err)
	}
	if r.Mode != driver.Read {
		missing = b.giveBack(ctx, r, missing)
	}
	return nil, missing
}

// giveBack releases what is of no use, because of cause. If that fails, it is for the
// core to release: then no error may be final, since that says that nothing was taken.
func (b *Backend) giveBack(ctx context.Context, r driver.Request, cause error) error {
	if err := b.Release(ctx, r.Hold); err != nil && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("%v; it is not certain that it was released: %v", cause, err)
	}
	return cause
}

// granted reports whether a take's reply says that the Owner holds.
func granted(reply any) bool {
	_, ok := reply.(string)
	return ok
}

// checkWait finds out whether the server has WAIT and lets it be used, before a lock
// depends on it. Too few replicas are no reason not to open: more may come.
func (b *Backend) checkWait(ctx context.Context) error {
	if b.replicas.need == 0 {
		return nil
	}
	_, err := b.client.Do(ctx, "", []string{"WAIT", "0", "1"})
	if re, is := redisconn.AsReply(err); is && re.UnknownCommand() {
		return fmt.Errorf("%w: the server can't wait for replicas: %w", driver.ErrUnsupported, err)
	}
	return err
}
