package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
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

// abandonedAcquires are the attempts whose callers gave up, and that may still be executed: a
// later command may go through another connection. Their Owner is released once more when they are over,
// or else a lock would be left behind. No other calls of an Owner need an order: a late renewal
// or attempt shortens nothing, and a released Owner does not come back.
type abandonedAcquires struct {
	some   atomic.Bool
	ctx    context.Context // of what is called later
	cancel context.CancelFunc
	wg     wait.Group

	mu      sync.Mutex
	closed  bool
	byOwner map[string][]<-chan struct{}
}

// add remembers an attempt, as long as it may be executed, if its error says that it may.
func (a *abandonedAcquires) add(owner string, err error) {
	u := (*redisconn.UnansweredError)(nil)
	if !errors.As(err, &u) {
		return
	}
	a.some.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byOwner == nil {
		a.byOwner = map[string][]<-chan struct{}{}
	}
	a.byOwner[owner] = append(a.byOwner[owner], u.Done)
	go func() {
		<-u.Done
		a.mu.Lock()
		defer a.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(a.byOwner[owner]), func(done <-chan struct{}) bool { return done == u.Done })
		if a.byOwner[owner] = rest; len(rest) == 0 {
			delete(a.byOwner, owner)
		}
	}()
}

// of returns what is closed when the remembered attempts of an Owner are over; nil: there are none.
func (a *abandonedAcquires) of(owner string) []<-chan struct{} {
	if !a.some.Load() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byOwner[owner]
}

// over returns nil once attempts can't be executed any more.
func over(ctx context.Context, attempts []<-chan struct{}) error {
	for _, done := range attempts {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("an earlier attempt may still be executed: %w", ctx.Err())
		}
	}
	return nil
}

// later calls f in another goroutine, unless the backend is closed. f ends with ctx.
func (a *abandonedAcquires) later(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.wg.Go(f)
	}
}

// close waits for what is called later, but no longer than a connection waits for an answer.
func (a *abandonedAcquires) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	defer time.AfterFunc(closeWait, a.cancel).Stop()
	a.wg.Wait()
}

const closeWait = 5 * time.Second
