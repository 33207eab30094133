package redislock

import (
	"context"
	"errors"
	"fmt"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Acquire makes one attempt, in one round trip.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := b.check(r.Hold)
	if err == nil {
		err = r.Validate(b.caps)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	g, err := b.storage.Acquire(ctx, r)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		return driver.Grant{}, b.acquireFailed(ctx, r, g, err)
	}
	b.markWorks()
	b.releases.retried(r.Owner)
	return g, err
}

// acquireFailed returns the error of an attempt that is neither granted nor refused. What it took nevertheless is given back.
func (b *Backend) acquireFailed(ctx context.Context, r driver.Request, taken driver.Grant, err error) error {
	if taken.TTL > 0 {
		// If the release fails, the core repeats it: then no error may be final, since that would say that nothing was acquired.
		if failed := b.storage.Release(ctx, r.Hold); failed != nil && !errors.Is(failed, driver.ErrLost) {
			err = fmt.Errorf("%v; it is not certain that it was released: %v", err, failed)
		}
		err = driver.Spent(err)
	}
	b.abandoned.add(r.Owner, err)
	// Nobody would see a wrong password of a new client if Lock just waited.
	return b.fail("acquire", r.Name, redisconn.Final(err, b.works.Load()))
}

// Acquire runs the script that acquires.
func (s *scripted) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	reply, err := s.run(ctx, s.scripts[r.Mode].acquire, s.acquiring(r))
	if err != nil {
		return driver.Grant{}, faultOf(s.layout.Prefix+r.Name, redisconn.MarkUnsent(err))
	}
	return s.outcome(r, reply)
}

func (s *scripted) acquiring(r driver.Request) command {
	m, key := s.layout.Mode(r.Mode), s.layout.Prefix+r.Name
	c := newCommand(append(m.Keys(words(usualWords), key, r.Owner), s.layout.Counter(r.Name)))
	c.words = m.AcquireArgs(c.words, key, s.notes.Start(r.Owner, r.Meta), r)
	return c
}

// outcome reads an acquire's reply.
func (s *scripted) outcome(r driver.Request, reply any) (driver.Grant, error) {
	if id, granted := reply.(string); granted {
		return s.layout.Grant(r, id)
	}
	list, _ := reply.([]any)
	if len(list) == 1 {
		list = append(list, nil)
	}
	if len(list) != 2 {
		return driver.Grant{}, redisconn.ErrUnexpected
	}
	left, isNumber := list[0].(int64)
	value, ok := list[1].(string)
	if !isNumber || !ok && list[1] != nil {
		return driver.Grant{}, redisconn.ErrUnexpected
	}
	if _, _, shared := layouts.Shared(value); shared || !ok {
		return driver.Grant{}, layouts.Held(left)
	}
	return driver.Grant{}, layouts.Held(left, s.layout.StringHolder(value, 0, left))
}
