// Package scriptless keeps exclusive locks of the layout "string" by plain commands, for servers whose user may not run
// scripts.
package scriptless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/plain"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Store keeps exclusive locks. A lock looks as scripts write it, so that both exclude each other, under fences of one
// counter.
type Store struct{ plain.Commands }

// New returns a store.
func New(c *redisconn.Client, p *redisconn.PubSub, l *layouts.Layout) *Store {
	return &Store{plain.Commands{Client: c, PubSub: p, Layout: l, Creates: true}}
}

func (s *Store) mode() *layouts.Mode { return s.Layout.Mode(driver.Exclusive) }

// Acquire makes one attempt, in one round trip; in two if it is refused, and in three if r's Owner holds already. A grant beside
// an error was taken, and is of no use.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	taken, err := s.Take(ctx, r)
	if err != nil {
		if taken.Outcome == plain.Held {
			return driver.Grant{}, err
		}
		return driver.Grant{TTL: r.TTL}, err
	}
	id := taken.ID
	switch taken.Outcome {
	case plain.Held:
		if !plain.OwnedBy(redisconn.Text(taken.Value.Reply), r.Owner) {
			return driver.Grant{}, s.Refusal(ctx, r, taken.Value)
		}
		if id, err = s.Again(ctx, r, func(h driver.Hold) error { return s.renewOne(ctx, h) }); err != nil {
			return driver.Grant{}, err
		}
	case plain.Queued:
		return driver.Grant{}, s.yieldToQueue(ctx, r)
	case plain.Ended:
		return driver.Grant{}, s.Refusal(ctx, r, taken.Value)
	}
	if id, err = s.spread(ctx, r.Name, id); err != nil {
		return driver.Grant{TTL: r.TTL}, err
	}
	return s.Layout.Grant(r, id)
}

// yieldToQueue gives up a lock that was taken before those in the queue, which clients with
// scripts keep. Only the first of them is notified: a message to all would wake r's own waiter.
func (s *Store) yieldToQueue(ctx context.Context, r driver.Request) error {
	_, err := s.PubSub.Detect(ctx, s.Client)
	if err == nil {
		err = s.free(ctx, r.Hold, nil)
	}
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return fmt.Errorf("others are queued; it is not certain that it was released: %v", err)
	}
	return &driver.HeldError{}
}

// spread returns an id, or a later one. A millisecond has a thousand: behind them, spread
// draws from the next millisecond in advance, as scripts do.
func (s *Store) spread(ctx context.Context, name, id string) (string, error) {
	for range redisconn.MaxTries {
		if layouts.InMillisecond(id) {
			return id, nil
		}
		ms, _, _ := strings.Cut(id, "-")
		n, err := strconv.ParseUint(ms, 10, 63)
		if err != nil {
			return "", err
		}
		// The first is refused if another client was quicker.
		got := s.Client.DoAll(ctx, s.Layout.Prefix+name, [][]string{s.XAdd(name, strconv.FormatUint(n+1, 10)+"-0"), s.XAdd(name, "*")})
		if err := got[1].Err; err != nil {
			return "", redisconn.Explain(err)
		}
		id = redisconn.Text(got[1].Reply)
	}
	return "", errors.New("the fence counter is used up again and again")
}

// Release ends a hold, in two round trips; in three if there is a queue.
func (s *Store) Release(ctx context.Context, h driver.Hold) error {
	if _, err := s.PubSub.Detect(ctx, s.Client); err != nil {
		return driver.Unsent(redisconn.Explain(err))
	}
	return redisconn.MarkUnsent(s.free(ctx, h, [][]string{s.PubSub.Publish(s.mode().Channel(s.Layout.Prefix+h.Name), "0")}))
}

// free ends a hold, and then publishes messages and one to each at the head of the queue that may hold now. What becomes of the messages
// changes nothing: the lock is free, and a waiter that is not notified finds that out by itself.
func (s *Store) free(ctx context.Context, h driver.Hold, messages [][]string) error {
	name := s.Layout.Prefix + h.Name
	behind := append([][]string{{"LINDEX", s.Layout.QueueKeys(name)[0], "0"}}, messages...)
	got, err := s.change(ctx, h, func(string, int64) [][]string { return [][]string{{"DEL", name}} }, behind)
	if err != nil {
		return err
	}
	if first := redisconn.Text(got[0].Reply); first != "" {
		s.notify(ctx, name, first)
	}
	return nil
}

// notify notifies the first in the queue, and those behind it that share the lock with it.
func (s *Store) notify(ctx context.Context, name, first string) {
	places := []string{first}
	if layouts.Shares(first) {
		reply, _ := s.Client.Do(ctx, name, []string{"LRANGE", s.Layout.QueueKeys(name)[0], "0", lastNotified})
		if head := layouts.Together(redisconn.Texts(reply)); len(head) > 0 {
			places = head
		}
	}
	messages := make([][]string, len(places))
	for i, place := range places {
		messages[i] = s.PubSub.Publish(s.mode().ClientChannel(name, place), place[:min(len(place), layouts.OwnerLen)])
	}
	s.Client.DoAll(ctx, name, messages)
}

// lastNotified is the index of the last place that a release notifies, as in scripts/line.lua.
const lastNotified = "63"

// renewalsAtOnce is how many connections the renewals of one call take.
const renewalsAtOnce = 8

// Renew renews each hold in two round trips.
func (s *Store) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	free := make(chan struct{}, renewalsAtOnce)
	var wg wait.Group
	for i, h := range holds {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = s.renewOne(ctx, h)
			<-free
		})
	}
	wg.Wait()
	return errs
}

func (s *Store) renewOne(ctx context.Context, h driver.Hold) error {
	_, err := s.change(ctx, h, func(value string, left int64) [][]string {
		key := s.Layout.Prefix + h.Name
		ms := max(layouts.CeilMillis(h.TTL), left) // a renewal may arrive late
		life := strconv.FormatInt(ms, 10)
		writes := [][]string{{"PEXPIRE", key, life}}
		note, ok := layouts.Fenced(value, s.Layout.ID(h.Fence))
		if !ok {
			note, ok = layouts.Later(value, ms-left)
		}
		if ok {
			writes[0] = []string{"SET", key, note, "XX", "PX", life}
		}
		if h.Floor >= s.Layout.Span {
			writes = append(writes, s.XAdd(h.Name, s.Layout.FloorID(h.Floor)))
		}
		return writes
	}, nil)
	return err
}

var errChanging = errors.New("the lock was changed again and again while it was looked at")

// change makes the writes of a hold, all or none, unless it is lost. The first write answers 0 or nil if the key is gone. left
// is the rest of the key's TTL in ms. The commands behind are sent together with the writes, and change returns
// their answers. They are no part of the transaction: one that is refused would undo it.
func (s *Store) change(ctx context.Context, h driver.Hold, writes func(value string, left int64) [][]string, behind [][]string) ([]redisconn.Answer, error) {
	name := s.Layout.Prefix + h.Name
	var results []any
	var answers []redisconn.Answer
	err := redisconn.Dedicated(ctx, s.Client, name, layouts.ProbeKey(name), func(send redisconn.Sender) error {
		for range redisconn.MaxTries {
			got := send([][]string{{"WATCH", name}, {"MGET", name}, {"PTTL", name}})
			redisconn.Expect(got, "oli")
			if err := cmp.Or(redisconn.Explain(redisconn.FirstError(got)), ctx.Err()); err != nil {
				if redisconn.TransportError(got) == nil {
					send([][]string{{"UNWATCH"}})
				}
				return driver.Unsent(err)
			}
			value := redisconn.Texts(got[1].Reply)
			if len(value) != 1 || !plain.OwnedBy(value[0], h.Owner) {
				send([][]string{{"UNWATCH"}})
				return nil
			}
			commands := append(append([][]string{{"MULTI"}}, writes(value[0], redisconn.Integer(got[2].Reply))...), []string{"EXEC"})
			all := send(append(commands, behind...))
			got = all[:len(commands)]
			answers = all[len(commands):]
			exec := got[len(got)-1]
			redisconn.Expect(got[len(got)-1:], "l")
			if exec = got[len(got)-1]; exec.Err != nil {
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
	if len(results) > 0 && (results[0] == int64(1) || results[0] == "OK") {
		return answers, nil
	}
	if len(results) > 0 && results[0] != int64(0) && results[0] != nil {
		return nil, redisconn.ErrUnexpected
	}
	// Only a master knows that a hold is lost: a replica refuses the write, which changes nothing.
	return nil, cmp.Or(redisconn.Probe(ctx, s.Client, layouts.ProbeKey(name)), driver.ErrLost)
}

// firstFailure returns the first error among n results of a transaction.
func firstFailure(results []any, n int) error {
	if len(results) != n {
		return redisconn.ErrUnexpected
	}
	for _, r := range results {
		// A fence counter beyond a floor refuses to be raised to it.
		if failed, is := r.(error); is && !strings.Contains(failed.Error(), "equal or smaller") {
			return fmt.Errorf("not all was done: %w", failed)
		}
	}
	return nil
}

// Read reads a plain lock, in one round trip, or two while its value lacks the fence.
func (s *Store) Read(ctx context.Context, key string) (layouts.Snapshot, error) {
	got := s.Client.DoAll(ctx, key, [][]string{
		{"TYPE", key}, {"TIME"}, {"PTTL", key}, {"LRANGE", s.Layout.QueueKeys(key)[0], "0", "-1"},
		{"GET", key},
	})
	seen := layouts.Snapshot{
		Kind: redisconn.Text(got[0].Reply), Now: plain.Clock(got[1].Reply), Left: redisconn.Integer(got[2].Reply), Value: redisconn.Text(got[4].Reply),
	}
	if seen.Kind != "string" {
		got = got[:4] // GET fails
	}
	if err := redisconn.FirstError(got); err != nil {
		return seen, redisconn.OtherType(redisconn.Explain(err))
	}
	for _, owner := range redisconn.Texts(got[3].Reply) {
		seen.Waiters = append(seen.Waiters, s.Layout.Waiter(owner, -1))
	}
	seen.Value = s.Fenced(ctx, key, seen.Value, seen.Now, seen.Left)
	return seen, nil
}

// Locks returns the plain locks among keys that distlock took.
func (s *Store) Locks(ctx context.Context, _ string, keys []string) ([]string, error) {
	commands := make([][]string, len(keys))
	for i, key := range keys {
		commands[i] = []string{"GETRANGE", key, "0", strconv.Itoa(layouts.OwnerLen)}
	}
	var held []string
	for i, a := range s.Client.DoAll(ctx, keys[0], commands) {
		re, refused := redisconn.AsReply(a.Err)
		switch {
		case a.Err == nil:
			if value := redisconn.Text(a.Reply); layouts.StartsNote(value) {
				held = append(held, keys[i])
			}
		case !refused || !re.HasCode("WRONGTYPE"):
			return nil, redisconn.Explain(a.Err)
		}
	}
	return held, nil
}
