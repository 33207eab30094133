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
	"github.com/distlock/distlock/internal/unsent"
)

// scriptless keeps exclusive locks of the layout "string" without scripts. A lock looks as
// scripts write it, so that both exclude each other, under fences of one counter; but
// its value lacks its fence, which is not known yet when the value is written.
type scriptless struct {
	*store
	replicas replicas
	wait     [][]string // waits for replicas; nil without replicas
}

func newScriptless(s *store, r replicas) *scriptless {
	p := &scriptless{store: s, replicas: r}
	if r.need > 0 {
		p.wait = [][]string{r.command()}
	}
	return p
}

// acquire makes one attempt, in one round trip; in three if r's Owner holds already.
func (p *scriptless) acquire(ctx context.Context, rec *recipe, r driver.Request) (driver.Grant, error) {
	n, err := p.take(ctx, rec, r)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: n * rec.span, Fences: min(max(r.Fences, 1), rec.span), TTL: r.TTL}, nil
}

// take returns the number that the counter gave. If the SET is refused, the commands behind
// it change nothing but the counter, and tell who holds the lock.
func (p *scriptless) take(ctx context.Context, rec *recipe, r driver.Request) (uint64, error) {
	name := p.prefix + r.Name
	commands := [][]string{
		{"SET", name, p.meta.noteStart(r.Owner, r.Meta), "NX", "PX", millis(r.TTL)},
		{"GET", name}, {"PTTL", name}, {"EXISTS", p.layout.queueKeys(name)[0]}, p.xadd(r.Name, "*"),
	}
	var got []redisconn.Answer
	if p.wait != nil {
		got = sendAcked(ctx, p.client, name, append(commands, p.wait...))
	} else {
		got = p.client.DoAll(ctx, name, commands)
	}
	set, value, id := got[0], got[1], text(got[4].Reply)
	if set.Err != nil {
		return 0, unsent.Mark(explain(set.Err))
	}
	if err := redisconn.TransportError(got); err != nil {
		return 0, err
	}
	if set.Reply == nil && !ownedBy(text(value.Reply), r.Owner) {
		return 0, p.refusedBy(ctx, r, value, got[2])
	}
	err := explain(redisconn.FirstError(got[:5]))
	switch {
	case set.Reply == nil && err == nil:
		err = p.reacquire(ctx, rec, r)
	case err == nil && p.wait != nil:
		err = p.replicas.check(got[5])
	}
	if set.Reply != nil && err == nil && integer(got[3].Reply) > 0 {
		return 0, p.yieldToQueue(ctx, rec, r)
	}
	n := uint64(0)
	if err == nil {
		n, err = p.number(ctx, r.Name, id)
	}
	if err != nil && set.Reply != nil {
		err = giveBack(ctx, p, rec, r, err)
	}
	return n, err
}

// refusedBy returns the error of an attempt that found another value.
func (p *scriptless) refusedBy(ctx context.Context, r driver.Request, value, left redisconn.Answer) error {
	if re, is := redisconn.AsReply(value.Err); is && re.HasCode("WRONGTYPE") {
		return p.noLock(r.Name, "no string")
	}
	if err := cmp.Or(value.Err, left.Err); err != nil {
		return explain(err)
	}
	ms := integer(left.Reply)
	if !isLockString(text(value.Reply), ms) {
		return p.noLock(r.Name, noToken(ms))
	}
	return p.refused(ctx, r, []any{ms, value.Reply})
}

// reacquire restarts the TTL of a lock that r's Owner holds already.
func (p *scriptless) reacquire(ctx context.Context, rec *recipe, r driver.Request) error {
	err := p.renew(ctx, renewBatch{recipe: rec, holds: []driver.Hold{r.Hold}})[0]
	if errors.Is(err, driver.ErrLost) {
		return errors.New("the lock ended while it was acquired again")
	}
	return err
}

// yieldToQueue gives up a lock that was taken before those in the queue, which clients with
// scripts keep. Only the first of them is notified: a message to all would wake r's own waiter.
func (p *scriptless) yieldToQueue(ctx context.Context, rec *recipe, r driver.Request) error {
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
func (p *scriptless) xadd(name, id string) []string {
	return []string{"XADD", p.layout.counter(p.prefix, name), "MAXLEN", "0", id, "", ""}
}

// number returns the number of an id. A millisecond has a thousand: behind them, number
// draws from the next millisecond in advance, as scripts do.
func (p *scriptless) number(ctx context.Context, name, id string) (uint64, error) {
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
			return 0, explain(err)
		}
		id = text(got[1].Reply)
	}
	return 0, errors.New("the fence counter is used up again and again")
}

// release ends a hold, in two round trips; in three if there is a queue.
func (p *scriptless) release(ctx context.Context, rec *recipe, h driver.Hold) error {
	if _, err := p.pubsub.Detect(ctx, p.client); err != nil {
		return explain(err)
	}
	return p.free(ctx, rec, h, [][]string{p.pubsub.Publish(rec.channel(p.prefix+h.Name), "0")})
}

// free ends a hold and publishes messages with that, and one to the first in the queue, if any.
func (p *scriptless) free(ctx context.Context, rec *recipe, h driver.Hold, messages [][]string) error {
	name := p.prefix + h.Name
	writes := append([][]string{{"DEL", name}, {"LINDEX", p.layout.queueKeys(name)[0], "0"}}, messages...)
	c := &change{key: name, owner: h.Owner, writes: writes}
	if err := p.change(ctx, []*change{c}, nil); err != nil {
		return err
	}
	if !c.made {
		return p.verifyLost(ctx, name)
	}
	if first := text(c.results[1]); first != "" {
		// The lock is free by now. A waiter that is not notified finds that out by itself.
		p.client.Do(ctx, name, p.pubsub.Publish(rec.channel(name)+":"+first, "0"))
	}
	return nil
}

// verifyLost returns the error of a hold that is gone. Only a master knows that: a replica
// refuses the write, which changes nothing.
func (p *scriptless) verifyLost(ctx context.Context, name string) error {
	if err := probe(ctx, p.client, name); err != nil {
		return err
	}
	return driver.ErrLost
}

// renew renews holds of one slot, in two round trips.
func (p *scriptless) renew(ctx context.Context, x renewBatch) []error {
	holds := x.holds
	changes := make([]*change, len(holds))
	for i, h := range holds {
		name := p.prefix + h.Name
		c := &change{key: name, owner: h.Owner, writes: [][]string{{"PEXPIRE", name, millis(h.TTL)}}}
		if x.floor > 0 {
			c.writes = append(c.writes, p.xadd(h.Name, p.layout.floorID(h.Floor)))
		}
		if !h.Shorten {
			c.atLeast = ceilMillis(h.TTL)
		}
		changes[i] = c
	}
	errs := make([]error, len(holds))
	err := p.change(ctx, changes, p.wait)
	if errors.Is(err, errChanging) && len(holds) > 1 {
		// One key that others change must not cost the other holds their renewal.
		for i := range holds {
			errs[i] = p.renew(ctx, renewBatch{recipe: x.recipe, holds: holds[i : i+1]})[0]
		}
		return errs
	}
	lost := error(nil)
	for i := range holds {
		errs[i] = err
		if short := (*tooFewReplicas)(nil); (err == nil || errors.As(err, &short)) && !changes[i].made {
			lost = cmp.Or(lost, p.verifyLost(ctx, changes[i].key))
			errs[i] = lost
		}
	}
	return errs
}

// change is a change of a key that belongs to an Owner.
type change struct {
	key, owner string
	writes     [][]string // the first answers 0 if the key is gone

	// atLeast is the TTL in ms of the PEXPIRE that the first write is. What is left of the
	// key's life counts if it is more, because a renewal may arrive late. Zero: the write is
	// sent as it is.
	atLeast int64

	made    bool
	results []any // of the writes
}

var errChanging = errors.New("the lock was changed again and again while it was looked at")

// change makes those changes whose keys belong to their Owners. All keys lie in one slot.
// The command wait, if any, waits for replicas.
func (p *scriptless) change(ctx context.Context, list []*change, wait [][]string) error {
	return dedicated(ctx, p.client, list[0].key, func(send func([][]string) []redisconn.Answer) (bool, error) {
		for range maxTries {
			got := send(look(list))
			owned, err := compare(list, got)
			err = cmp.Or(err, ctx.Err())
			if redisconn.TransportError(got) != nil || misdirected(got) {
				return misdirected(got), explain(err)
			}
			if len(owned) == 0 || err != nil {
				send([][]string{{"UNWATCH"}})
				return false, err
			}
			commands := [][]string{{"MULTI"}}
			for _, c := range owned {
				commands = append(commands, c.writes...)
			}
			got = send(append(append(commands, []string{"EXEC"}), wait...))
			exec := got[len(commands)]
			if results, ok := exec.Reply.([]any); ok {
				if err = apply(owned, results); err == nil && wait != nil {
					err = p.replicas.check(got[len(got)-1])
				}
				return false, err
			}
			if exec.Err != nil {
				return misdirected(got), explain(cmp.Or(redisconn.TransportError(got), redisconn.FirstError(got)))
			}
		}
		return false, errChanging
	})
}

// look watches and reads the keys, and asks for what is left of their lives.
func look(list []*change) [][]string {
	watch, get := []string{"WATCH"}, []string{"MGET"}
	commands := [][]string{nil, nil}
	for _, c := range list {
		watch, get = append(watch, c.key), append(get, c.key)
		commands = append(commands, []string{"PTTL", c.key})
	}
	commands[0], commands[1] = watch, get
	return commands
}

// compare returns the changes whose keys belong to their Owners.
func compare(list []*change, got []redisconn.Answer) (owned []*change, err error) {
	if err := redisconn.FirstError(got); err != nil {
		return nil, explain(err)
	}
	values, ok := got[1].Reply.([]any)
	if !ok || len(values) != len(list) {
		return nil, errAnswer
	}
	for i, c := range list {
		if value, is := values[i].(string); !is || !ownedBy(value, c.owner) {
			continue
		}
		if c.atLeast > 0 {
			c.writes[0][2] = strconv.FormatInt(max(c.atLeast, integer(got[2+i].Reply)), 10)
		}
		owned = append(owned, c)
	}
	return owned, nil
}

// apply reads the results of a transaction.
func apply(owned []*change, results []any) (err error) {
	for _, c := range owned {
		if len(results) < len(c.writes) {
			return errAnswer
		}
		c.results, results = results[:len(c.writes)], results[len(c.writes):]
		c.made = c.results[0] != int64(0)
		for _, r := range c.results {
			// A fence counter beyond a floor refuses to be raised to it.
			if failed, is := r.(error); is && !strings.Contains(failed.Error(), "equal or smaller") {
				err = fmt.Errorf("not all was done: %w", failed)
			}
		}
	}
	return err
}

// ownedBy reports whether the value of a plain lock is owner's. The Owner of a lock that is
// not distlock's is the whole value, as Inspect shows it.
func ownedBy(value, owner string) bool {
	return value == owner || len(owner) == ownerLen && strings.HasPrefix(value, owner+" ")
}

// look reads a key by plain commands, in one round trip. They show the holders of Redisson's
// locks, without the notes beside each hold.
func (p *scriptless) look(ctx context.Context, name string) (snapshot, error) {
	got := p.client.DoAll(ctx, name, [][]string{
		{"TYPE", name}, {"TIME"}, {"PTTL", name}, {"GET", name},
		{"HGET", name, "mode"}, {"HKEYS", name},
		{"EXISTS", permitsKey(name)}, {"LRANGE", p.layout.queueKeys(name)[0], "0", "-1"},
	})
	// The commands for other types fail.
	var needed []redisconn.Answer
	s := snapshot{kind: text(got[0].Reply), now: clock(got[1].Reply), left: integer(got[2].Reply)}
	switch s.kind {
	case "string":
		s.value = text(got[3].Reply)
		needed = []redisconn.Answer{got[3], got[6]}
		if integer(got[6].Reply) > 0 {
			return snapshot{}, fmt.Errorf("%w: to tell who holds a semaphore, without scripts", driver.ErrUnsupported)
		}
	case "hash":
		s.value = text(got[4].Reply)
		needed = got[4:6]
		for _, field := range texts(got[5].Reply) {
			if field != "mode" {
				s.holders = append(s.holders, holderRecord{written: field, left: s.left})
			}
		}
	}
	if err := redisconn.FirstError(append(got[:3:3], needed...)); err != nil {
		return snapshot{}, explain(err)
	}
	s.waiters = queuedHolders(texts(got[7].Reply))
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
func (p *scriptless) locks(ctx context.Context, _ string, keys []string) ([]string, error) {
	commands := make([][]string, len(keys))
	for i, key := range keys {
		commands[i] = []string{"GETRANGE", key, "0", strconv.Itoa(ownerLen)}
	}
	var held []string
	for i, a := range p.client.DoAll(ctx, keys[0], commands) {
		re, refused := redisconn.AsReply(a.Err)
		switch {
		case a.Err == nil:
			if value := text(a.Reply); noteStart.MatchString(value) {
				held = append(held, keys[i])
			}
		case !refused || !re.HasCode("WRONGTYPE"):
			return nil, explain(a.Err)
		}
	}
	return held, nil
}
