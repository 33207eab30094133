package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// abandonedAcquires are the attempts whose callers gave up, and that may still be executed: a
// later command may go through another connection. The release of their Owner waits for them,
// or else it would leave a lock behind. No other calls of an Owner need an order: a late renewal
// or attempt shortens nothing, and a released Owner does not come back.
type abandonedAcquires struct {
	some atomic.Bool

	mu      sync.Mutex
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

// wait returns once no remembered attempt of an Owner can be executed any more.
func (a *abandonedAcquires) wait(ctx context.Context, owner string) error {
	if !a.some.Load() {
		return nil
	}
	a.mu.Lock()
	list := a.byOwner[owner]
	a.mu.Unlock()
	for _, done := range list {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
