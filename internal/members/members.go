// Package members has the parts that backends made of other backends share.
package members

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// ErrNoAnswer is for a hold to which a member gave no answer.
var ErrNoAnswer = errors.New("the member gave no answer")

// Member is a backend with a name. Its optional calls return ErrSkip if the backend lacks them.
type Member struct {
	driver.Backend
	Name string
}

// RenewOne renews one hold.
func (m *Member) RenewOne(ctx context.Context, h driver.Hold) error {
	if errs := m.Renew(ctx, []driver.Hold{h}); len(errs) == 1 {
		return errs[0]
	}
	return ErrNoAnswer
}

func (m *Member) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	if w, ok := m.Backend.(driver.Watcher); ok {
		return w.Watch(ctx, r)
	}
	return driver.Watch{}, driver.ErrSkip
}

func (m *Member) Inspect(ctx context.Context, name string) (driver.Info, error) {
	if i, ok := m.Backend.(driver.Inspector); ok {
		return i.Inspect(ctx, name)
	}
	return driver.Info{Name: name}, driver.ErrSkip
}

func (m *Member) List(ctx context.Context, prefix string, yield func(string) bool) error {
	if i, ok := m.Backend.(driver.Inspector); ok {
		return i.List(ctx, prefix, yield)
	}
	return driver.ErrSkip
}

func (m *Member) Revoke(ctx context.Context, h driver.Hold) error {
	if r, ok := m.Backend.(driver.Revoker); ok {
		return r.Revoke(ctx, h)
	}
	return fmt.Errorf("%w: revocation", driver.ErrUnsupported)
}

// Close closes the backend. The error has the member's name.
func (m *Member) Close() error {
	if err := m.Backend.Close(); err != nil {
		return fmt.Errorf("close %s: %w", m.Name, err)
	}
	return nil
}

// Open opens all members at once. It needs a majority, and fails if a member can never join, for a
// wrong password say. Lazy members replace those that are down, or take a second longer than a
// majority: they claim what the opened ones have in common, and join if suffices accepts their Caps.
// It also returns the Caps of the opened ones.
func Open(ctx context.Context, names, urls []string, suffices func(c, want driver.Caps) bool) ([]driver.Backend, []driver.Caps, error) {
	all, errs := make([]driver.Backend, len(urls)), make([]error, len(urls))
	majority, opened := len(urls)/2+1, atomic.Int32{}
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg wait.Group
	for i, u := range urls {
		wg.Go(func() {
			if all[i], errs[i] = driver.Open(opening, u); errs[i] == nil && int(opened.Add(1)) == majority {
				time.AfterFunc(time.Second, cancel)
			}
		})
	}
	wg.Wait()
	var caps []driver.Caps
	never := false
	for i, err := range errs {
		if never = never || driver.Final(err); err == nil {
			caps = append(caps, all[i].Caps())
		}
	}
	if never || len(caps) < majority {
		CloseAll(all)
		return nil, nil, fmt.Errorf("%d of %d members could be opened, need %d and none that can never be: %w",
			len(caps), len(urls), majority, failures(names, errs))
	}
	want := Intersect(caps)
	for i, err := range errs {
		if err != nil {
			want.Name, want.Poll = names[i], 0
			all[i] = newLazy(urls[i], want, suffices, err)
		}
	}
	return all, caps, nil
}

// Intersect returns what all can do.
func Intersect(all []driver.Caps) driver.Caps {
	c := all[0]
	for _, o := range all {
		c = c.Intersect(o)
	}
	return c
}

// failures returns the members' errors. Members with the same error share one.
func failures(names []string, errs []error) error {
	of := map[string][]string{}
	for i, err := range errs {
		if err != nil {
			of[err.Error()] = append(of[err.Error()], names[i])
		}
	}
	var failed []error
	for _, err := range errs {
		if err != nil && of[err.Error()] != nil {
			failed = append(failed, fmt.Errorf("%s: %w", strings.Join(of[err.Error()], ", "), err))
			delete(of, err.Error())
		}
	}
	return errors.Join(failed...)
}

// CloseAll closes backends at once. It skips those that are nil.
func CloseAll(all []driver.Backend) error {
	errs := make([]error, len(all))
	var wg wait.Group
	for i, b := range all {
		if b != nil {
			wg.Go(func() { errs[i] = b.Close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Calls are the calls and the background tasks of a backend that can be closed.
type Calls struct {
	Life context.Context // ends when Close begins

	end   context.CancelFunc
	mu    sync.Mutex
	tasks wait.Group // guarded by mu while it may be 0
}

// NewCalls returns the calls of an open backend.
func NewCalls() *Calls {
	c := &Calls{}
	c.Life, c.end = context.WithCancel(context.Background())
	return c
}

// Begin starts a call unless the backend is closed or ctx has ended. End ends it.
func (c *Calls) Begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Life.Err() != nil {
		return driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w before the call", err)
	}
	c.tasks.Add(1)
	return nil
}

// End ends a call.
func (c *Calls) End() { c.tasks.Done() }

// Go runs a task in the background. A call or another task is running.
func (c *Calls) Go(f func()) { c.tasks.Go(f) }

// Close refuses further calls and ends Life.
func (c *Calls) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// Wait waits up to d for running calls and tasks.
func (c *Calls) Wait(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	go func() {
		c.tasks.Wait()
		cancel()
	}()
	<-ctx.Done()
}
