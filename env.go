package distlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/bounded"
	"github.com/distlock/distlock/internal/release"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/wait"
)

// instant is a point in time as the time since the client was made.
type instant = time.Duration

const longAgo instant = -time.Hour

// env is shared by the parts of a client.
type env struct {
	backend  driver.Backend
	caps     driver.Caps
	opts     Options
	observer Observer
	base     time.Time // instants are durations since base, which is monotonic
	owners   driver.Owners

	watchdog *renew.Watchdog
	releaser *release.Releaser
	calls    calls
	tasks    tasks       // contenders and background releases
	polls    atomic.Bool // of some names at least, waiters have no signal

	// attached has the holds that Attach has made, by Owner, until they end; nil while it makes one.
	attached sync.Map

	done chan struct{}   // closed by Close
	life context.Context // of renewals; ends with Close
}

// now returns the monotonic time since the client was made. Trust in holds is computed in it and in
// nothing else.
func (e *env) now() time.Duration { return time.Since(e.base) }

// poll returns the shortest pause of a waiter without a signal.
func (e *env) poll() time.Duration {
	if e.caps.Poll > 0 {
		return e.caps.Poll
	}
	return defaultPoll
}

// endless reports whether holds may outlast their TTL though nobody renews them: those of a session that lives on, and
// those that end only for others who have watched them.
func (e *env) endless() bool { return e.caps.Session || e.caps.Observed }

func (e *env) isClosed() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// tasks counts the tasks that Close waits for.
type tasks struct {
	n       atomic.Int64
	waiting atomic.Bool // a Close does
	idle    wait.Signal
}

func (t *tasks) Begin() { t.n.Add(1) }

func (t *tasks) End() {
	if t.n.Add(-1) == 0 && t.waiting.Load() {
		t.idle.Notify()
	}
}

// wait waits until there are none. It reports false if ctx ends first.
func (t *tasks) wait(ctx context.Context) bool {
	t.waiting.Store(true)
	for t.n.Load() > 0 {
		select {
		case <-t.idle:
		case <-ctx.Done():
			return t.n.Load() == 0
		}
	}
	return true
}

// after calls f in d, or when the client closes.
func (e *env) after(d time.Duration, f func()) {
	e.tasks.Begin()
	ctx, cancel := context.WithTimeout(e.life, d)
	context.AfterFunc(ctx, func() {
		defer e.tasks.End()
		cancel()
		f()
	})
}

// calls makes the contexts that bound calls to the backend. A context with a timer of its own for
// each call costs more than the rest of an uncontended lock in this package, so calls that begin at
// about the same time share one.
type calls struct {
	timeout time.Duration
	last    atomic.Pointer[callLimit]
	mu      sync.Mutex // while another one is made
}

// callLimit ends calls that began at about the same time.
type callLimit struct {
	context.Context
	cancel context.CancelFunc
	until  time.Time // when it gets too short for new calls
}

// context returns a context that ends with parent, and after d or, if that is the usual timeout, a
// little earlier: after between three quarters of it and all of it. The caller ends it once the call is over.
func (c *calls) context(parent context.Context, d time.Duration) *bounded.Context {
	limit := c.last.Load()
	switch {
	case d != c.timeout:
		return bounded.Within(parent, d)
	case limit == nil || !time.Now().Before(limit.until):
		limit = c.renew()
	}
	return bounded.New(parent, limit)
}

// lasting returns a context with the values of ctx that does not end with it.
func lasting(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// renew makes another limit. The one before ends by its timer: others may be using it.
func (c *calls) renew() *callLimit {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if limit := c.last.Load(); limit != nil && now.Before(limit.until) {
		return limit
	}
	limit := &callLimit{until: now.Add(c.timeout / 4)}
	limit.Context, limit.cancel = context.WithTimeout(context.Background(), c.timeout)
	c.last.Store(limit)
	return limit
}

// close ends the calls in flight when the backend is closed.
func (c *calls) close() {
	if limit := c.last.Load(); limit != nil {
		limit.cancel()
	}
}
