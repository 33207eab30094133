package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt, in one round trip.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	rec, err := b.recipe(r.Hold)
	if err == nil {
		err = r.Validate(b.caps)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	g, err := b.storage.acquire(ctx, rec, r)
	switch {
	case err == nil || errors.Is(err, driver.ErrHeld):
		b.markWorks()
		b.releases.retried(r.Owner)
		return g, err
	default:
		// Nobody would see a wrong password of a new client if Lock just waited.
		b.abandoned.add(r.Owner, err)
		return driver.Grant{}, b.fail("acquire", r.Name, redisconn.Final(err, b.works.Load()))
	}
}

// acquire runs the script that acquires.
func (s scripted) acquire(ctx context.Context, rec *recipe, r driver.Request) (driver.Grant, error) {
	reply, err := s.run(ctx, rec.acquire, s.acquireCall(rec, r))
	if err != nil {
		return driver.Grant{}, s.faultOf(r.Name, notTaken(err))
	}
	return s.outcome(ctx, rec, r, reply)
}

func (s *store) acquireCall(rec *recipe, r driver.Request) call {
	name := s.prefix + r.Name
	c := newCall(append(rec.keys(words(usualWords), name, r.Owner), s.layout.counter(s.prefix, r.Name)))
	note := s.meta.noteStart(r.Owner, r.Meta)
	if r.Mode == driver.Exclusive && s.layout.span > 1 {
		// The note is the value, and begins with all that the script needs.
		c.add(note, millis(r.TTL), bit(r.Queue))
		return c
	}
	c.add(rec.field(r.Owner), millis(r.TTL), note)
	if rec.acquireArgs != nil {
		c.add(rec.acquireArgs(name, r)...)
	}
	return c
}

// usualWords is the number of keys and arguments of an exclusive lock in the default layout.
const usualWords = 7

// outcome reads an acquire's reply.
func (s *store) outcome(ctx context.Context, rec *recipe, r driver.Request, reply any) (driver.Grant, error) {
	id, ok := reply.(string)
	if !ok {
		return driver.Grant{}, s.refused(ctx, r, reply)
	}
	fence, err := s.layout.fence(id)
	if err != nil {
		return driver.Grant{}, fmt.Errorf("the fence counter answered %q: %w", id, err)
	}
	return driver.Grant{Fence: fence, Fences: min(max(r.Fences, 1), rec.span), TTL: r.TTL}, nil
}

// refused returns the error of a refusal, in a second round trip if a number is in the way.
func (s *store) refused(ctx context.Context, r driver.Request, reply any) error {
	list, ok := reply.([]any)
	if !ok || len(list) == 0 {
		return fmt.Errorf("unexpected answer %v", reply)
	}
	e := &driver.HeldError{}
	left := integer(list[0])
	if d := lifeLeft(left); d >= 0 {
		// The key ends in the course of its last millisecond.
		e.Retry = d + time.Millisecond
	}
	if len(list) < 2 {
		return e
	}
	value, ok := list[1].(string)
	if !ok {
		return e
	}
	if r.Mode == driver.Exclusive && s.isSemaphore(ctx, r.Name, value) {
		return fmt.Errorf("%w: this name is a semaphore", driver.ErrInvalid)
	}
	e.Holders = []driver.Holder{s.layout.stringHolder(value, 0, left)}
	return e
}

// isSemaphore reports whether a lock's value is a semaphore's counter. Other programs lock with
// numbers too, but only a semaphore has permits.
func (s *store) isSemaphore(ctx context.Context, name, value string) bool {
	if _, err := strconv.ParseInt(value, 10, 64); err != nil {
		return false
	}
	key := s.prefix + name
	reply, err := s.client.Do(ctx, key, []string{"EXISTS", permitsKey(key)})
	return err == nil && reply == int64(1)
}
