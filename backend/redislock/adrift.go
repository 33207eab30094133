package redislock

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
)

// adrift are the attempts to acquire that were given up, and may still be executed: a later
// command may go through another connection. The release of one's Owner waits for it, or
// else it would leave a lock behind of which nobody knows. Nothing else of an Owner must be in
// order: a late renewal or attempt shortens nothing, and a released Owner does not come back.
type adrift struct {
	some atomic.Bool

	mu      sync.Mutex
	byOwner map[string][]<-chan struct{}
	sweepAt int
}

// note remembers an attempt if it ended with an error that says so.
func (a *adrift) note(owner string, err error) {
	u := (*redisconn.UnansweredError)(nil)
	if err == nil || !errors.As(err, &u) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.byOwner) >= a.sweepAt {
		maps.DeleteFunc(a.byOwner, func(_ string, list []<-chan struct{}) bool { return allClosed(list) })
		a.sweepAt = 2*len(a.byOwner) + 64
	}
	if a.byOwner == nil {
		a.byOwner = map[string][]<-chan struct{}{}
	}
	a.byOwner[owner] = append(a.byOwner[owner], u.Done)
	a.some.Store(true)
}

// wait returns when what was noted of an Owner has been executed, or can't be any more.
func (a *adrift) wait(ctx context.Context, owner string) error {
	if !a.some.Load() {
		return nil
	}
	a.mu.Lock()
	list := a.byOwner[owner]
	a.mu.Unlock()
	for _, landed := range list {
		select {
		case <-landed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.byOwner[owner]) == len(list) {
		delete(a.byOwner, owner)
	}
	return nil
}

func allClosed(list []<-chan struct{}) bool {
	for _, c := range list {
		select {
		case <-c:
		default:
			return false
		}
	}
	return true
}
