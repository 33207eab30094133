package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/internal/wait"
)

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
