package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// scriptless keeps exclusive locks of the layout "string" without scripts. A lock looks as
// scripts write it, so that both exclude each other, under fences of one counter; but
// its value lacks its fence, which is not known yet when the value is written.
type scriptless struct{ *store }

// acquire makes one attempt, in one round trip; in three if r's Owner holds already. If the SET is
// refused, the commands behind it change nothing but the counter, and show the holder.
func (p scriptless) acquire(ctx context.Context, rec *recipe, r driver.Request) (driver.Grant, error) {
	name := p.prefix + r.Name
	got := p.client.DoAll(ctx, name, [][]string{
		{"SET", name, p.meta.noteStart(r.Owner, r.Meta), "NX", "PX", millis(r.TTL)},
		{"GET", name}, {"PTTL", name}, {"EXISTS", p.layout.queueKeys(name)[0]}, p.xadd(r.Name, "*"),
	})
	set, value := got[0], got[1]
	if set.Err != nil {
		return driver.Grant{}, p.faultOf(r.Name, notTaken(redisconn.Explain(set.Err)))
	}
	if err := redisconn.TransportError(got); err != nil {
		return driver.Grant{}, err
	}
	if set.Reply == nil && !ownedBy(text(value.Reply), r.Owner) {
		return driver.Grant{}, p.refusedBy(ctx, r, value, got[2])
	}
	err := p.faultOf(r.Name, redisconn.Explain(redisconn.FirstError(got)))
	switch {
	case err == nil && set.Reply == nil:
		if err = p.renewOne(ctx, r.Hold); errors.Is(err, driver.ErrLost) {
			err = errors.New("the lock ended while it was acquired again")
		}
	case err == nil && integer(got[3].Reply) > 0:
		return driver.Grant{}, p.yieldToQueue(ctx, rec, r)
	}
	n := uint64(0)
	if err == nil {
		n, err = p.number(ctx, r.Name, text(got[4].Reply))
	}
	if err != nil {
		if set.Reply != nil {
			err = giveBack(ctx, p, rec, r, err)
		}
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: n * rec.span, Fences: min(max(r.Fences, 1), rec.span), TTL: r.TTL}, nil
}

// refusedBy returns the error of an attempt that found another value.
func (p scriptless) refusedBy(ctx context.Context, r driver.Request, value, left redisconn.Answer) error {
	if re, is := redisconn.AsReply(value.Err); is && re.HasCode("WRONGTYPE") {
		return p.noLock(r.Name, "no string")
	}
	if err := cmp.Or(value.Err, left.Err); err != nil {
		return redisconn.Explain(err)
	}
	ms := integer(left.Reply)
	if !isLockString(text(value.Reply), ms) {
		return p.noLock(r.Name, noToken(ms))
	}
	return p.refused(ctx, r, []any{ms, value.Reply})
}

// yieldToQueue gives up a lock that was taken before those in the queue, which clients with
// scripts keep. Only the first of them is notified: a message to all would wake r's own waiter.
func (p scriptless) yieldToQueue(ctx context.Context, rec *recipe, r driver.Request) error {
	_, err := p.pubsub.Detect(ctx, p.client)
	if err == nil {
		err = p.free(ctx, rec, r.Hold, nil)
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("others are queued; it is not certain that it was released: %v", err)
	}
	return &driver.HeldError{}
}

// xadd is the command that takes an id from the fence counter.
func (p scriptless) xadd(name, id string) []string {
	return []string{"XADD", p.layout.counter(p.prefix, name), "MAXLEN", "0", id, "", ""}
}

// number returns the number of an id. A millisecond has a thousand: behind them, number
// draws from the next millisecond in advance, as scripts do.
func (p scriptless) number(ctx context.Context, name, id string) (uint64, error) {
	for range maxTries {
		ms, seq, _ := strings.Cut(id, "-")
		if len(seq) < 4 {
			return number64(id)
		}
		n, err := strconv.ParseUint(ms, 10, 63)
		if err != nil {
			return 0, err
		}
		// The first is refused if another client was quicker.
		got := p.client.DoAll(ctx, p.prefix+name, [][]string{p.xadd(name, strconv.FormatUint(n+1, 10)+"-0"), p.xadd(name, "*")})
		if err := got[1].Err; err != nil {
			return 0, redisconn.Explain(err)
		}
		id = text(got[1].Reply)
	}
	return 0, errors.New("the fence counter is used up again and again")
}

// release ends a hold, in two round trips; in three if there is a queue.
func (p scriptless) release(ctx context.Context, rec *recipe, h driver.Hold) error {
	if _, err := p.pubsub.Detect(ctx, p.client); err != nil {
		return redisconn.Explain(err)
	}
	return p.free(ctx, rec, h, [][]string{p.pubsub.Publish(rec.channel(p.prefix+h.Name), "0")})
}

// free ends a hold, and then publishes messages and one to the first in the queue, if any. What becomes of the messages
// changes nothing: the lock is free, and a waiter that is not notified finds that out by itself.
func (p scriptless) free(ctx context.Context, rec *recipe, h driver.Hold, messages [][]string) error {
	name := p.prefix + h.Name
	behind := append([][]string{{"LINDEX", p.layout.queueKeys(name)[0], "0"}}, messages...)
	got, err := p.change(ctx, h, func(int64) [][]string { return [][]string{{"DEL", name}} }, behind)
	if err != nil {
		return err
	}
	if first := text(got[0].Reply); first != "" {
		p.client.Do(ctx, name, p.pubsub.Publish(clientChannel(rec.channel(name), first), first))
	}
	return nil
}

// renewalsAtOnce is how many connections the renewals of one call take.
const renewalsAtOnce = 8

// renew renews each hold in two round trips.
func (p scriptless) renew(ctx context.Context, x renewBatch) []error {
	errs := make([]error, len(x.holds))
	free := make(chan struct{}, renewalsAtOnce)
	var wg wait.Group
	for i, h := range x.holds {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = p.renewOne(ctx, h)
			<-free
		})
	}
	wg.Wait()
	return errs
}

func (p scriptless) renewOne(ctx context.Context, h driver.Hold) error {
	_, err := p.change(ctx, h, func(left int64) [][]string {
		life := max(ceilMillis(h.TTL), left) // a renewal may arrive late
		writes := [][]string{{"PEXPIRE", p.prefix + h.Name, strconv.FormatInt(life, 10)}}
		if h.Floor >= p.layout.span {
			writes = append(writes, p.xadd(h.Name, p.layout.floorID(h.Floor)))
		}
		return writes
	}, nil)
	return err
}

var errChanging = errors.New("the lock was changed again and again while it was looked at")

// change makes the writes of a hold, all or none, unless it is lost. The first write answers 0 if the key is gone. left
// is the rest of the key's TTL in ms. The commands behind are sent together with the writes, and change returns
// their answers. They are no part of the transaction: one that is refused would undo it.
func (p scriptless) change(ctx context.Context, h driver.Hold, writes func(left int64) [][]string, behind [][]string) ([]redisconn.Answer, error) {
	name := p.prefix + h.Name
	var results []any
	var answers []redisconn.Answer
	err := dedicated(ctx, p.client, name, func(send sender) error {
		for range maxTries {
			got := send([][]string{{"WATCH", name}, {"MGET", name}, {"PTTL", name}})
			if err := cmp.Or(redisconn.Explain(redisconn.FirstError(got)), ctx.Err()); err != nil {
				if redisconn.TransportError(got) == nil {
					send([][]string{{"UNWATCH"}})
				}
				return err
			}
			if value := texts(got[1].Reply); len(value) != 1 || !ownedBy(value[0], h.Owner) {
				send([][]string{{"UNWATCH"}})
				return nil
			}
			commands := append(append([][]string{{"MULTI"}}, writes(integer(got[2].Reply))...), []string{"EXEC"})
			all := send(append(commands, behind...))
			got = all[:len(commands)]
			answers = all[len(commands):]
			exec := got[len(got)-1]
			if exec.Err != nil {
				return redisconn.Explain(cmp.Or(redisconn.TransportError(got), redisconn.FirstError(got)))
			}
			if list, ok := exec.Reply.([]any); ok {
				results = list
				return firstFailure(list, len(commands)-2)
			}
		}
		return errChanging
	})
	if err != nil {
		return nil, err
	}
	if len(results) > 0 && results[0] != int64(0) {
		return answers, nil
	}
	// Only a master knows that a hold is lost: a replica refuses the write, which changes nothing.
	return nil, cmp.Or(probe(ctx, p.client, name), driver.ErrLost)
}

// firstFailure returns the first error among n results of a transaction.
func firstFailure(results []any, n int) error {
	if len(results) != n {
		return errAnswer
	}
	for _, r := range results {
		// A fence counter beyond a floor refuses to be raised to it.
		if failed, is := r.(error); is && !strings.Contains(failed.Error(), "equal or smaller") {
			return fmt.Errorf("not all was done: %w", failed)
		}
	}
	return nil
}

// ownedBy reports whether the value of a plain lock is owner's. The Owner of a lock that is
// not distlock's is the whole value, as Inspect shows it.
func ownedBy(value, owner string) bool {
	return value == owner || len(owner) == ownerLen && strings.HasPrefix(value, owner+" ")
}

// readKey reads a plain lock, in one round trip.
func (p scriptless) readKey(ctx context.Context, name string) (snapshot, error) {
	got := p.client.DoAll(ctx, name, [][]string{
		{"TYPE", name}, {"TIME"}, {"PTTL", name}, {"LRANGE", p.layout.queueKeys(name)[0], "0", "-1"},
		{"EXISTS", permitsKey(name)}, {"GET", name},
	})
	s := snapshot{kind: text(got[0].Reply), now: clock(got[1].Reply), left: integer(got[2].Reply), value: text(got[5].Reply)}
	if s.kind != "string" {
		got = got[:5] // GET fails
	}
	if err := redisconn.FirstError(got); err != nil {
		return snapshot{}, redisconn.Explain(err)
	}
	if s.kind == "hash" || integer(got[4].Reply) > 0 {
		return snapshot{}, fmt.Errorf("%w: to tell who holds a semaphore or a lock of Redisson, without scripts", driver.ErrUnsupported)
	}
	for _, owner := range texts(got[3].Reply) {
		s.waiters = append(s.waiters, driver.Holder{Owner: ownerOf(owner), Mode: driver.Exclusive, Held: -1, Left: -1})
	}
	return s, nil
}

// clock reads TIME's answer: the time since 1970.
func clock(reply any) time.Duration {
	parts := texts(reply)
	if len(parts) != 2 {
		return 0
	}
	seconds, _ := strconv.ParseInt(parts[0], 10, 64)
	micros, _ := strconv.ParseInt(parts[1], 10, 64)
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond
}

// locks returns the plain locks among keys that distlock took.
func (p scriptless) locks(ctx context.Context, _ string, keys []string) ([]string, error) {
	commands := make([][]string, len(keys))
	for i, key := range keys {
		commands[i] = []string{"GETRANGE", key, "0", strconv.Itoa(ownerLen)}
	}
	var held []string
	for i, a := range p.client.DoAll(ctx, keys[0], commands) {
		re, refused := redisconn.AsReply(a.Err)
		switch {
		case a.Err == nil:
			if value := text(a.Reply); noteStart().MatchString(value) {
				held = append(held, keys[i])
			}
		case !refused || !re.HasCode("WRONGTYPE"):
			return nil, redisconn.Explain(a.Err)
		}
	}
	return held, nil
}

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
	return redisconn.Explain(err)
}
