// Package exclusion checks that no two holders have a lock at once, that fences increase, and that contexts end with their leases. A
// lock is held from when Lock returned until the lease has an error or Unlock is called: this is
// the view of its holder, who compares the clock. The package is for tests that break networks and servers, and for tests
// in which distlock shares locks with other libraries.
package exclusion

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/wait"
)

// Hold is a *distlock.Lease, or what a test of a driver has in its place. It is held until it has
// an error.
type Hold interface {
	Name() string
	Fence() uint64 // 0: none
	Err() error
}

// Sharer is a Hold that may have others beside it. Their fences need not come in the order in which they enter.
type Sharer interface {
	Hold
	Shares() Sharing
}

func shares(h Hold) (s Sharing) {
	if h, ok := h.(Sharer); ok {
		s = h.Shares()
	}
	return s
}

// Sharing says which holds may be beside one: those of its kind, if there is room for so many. The zero value has none beside it.
type Sharing struct {
	Kind string
	Room int // with itself
}

// Fits reports whether a hold may begin beside others.
func (s Sharing) Fits(beside []Sharing) bool {
	other := func(o Sharing) bool { return o.Kind != s.Kind }
	return len(beside) == 0 || len(beside) < s.Room && !slices.ContainsFunc(beside, other)
}

// Checker knows all holds. Any goroutine may call its methods.
type Checker struct {
	mu     sync.Mutex
	locks  map[string]*history
	faults []string
	holds  int
	lost   int
	late   wait.Group // of holders that may not know that they have lost a lock
}

// history records the events of one lock.
type history struct {
	held   map[Hold]string // the holders' names
	fence  uint64          // the last one
	last   string          // the last holder's name
	holds  int
	turns  int           // holds after one by another name
	taken  time.Time     // when it was taken last
	unused time.Duration // the longest time between two holds
}

// New returns a checker without holds.
func New() *Checker { return &Checker{locks: map[string]*history{}} }

// Enter records the start of a hold. It reports a fault if the lock has another holder, or if the
// fence is not greater than all before it. A lease that has already ended is ignored.
func (c *Checker) Enter(who string, lease Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lease.Err() != nil {
		return
	}
	if l, ok := lease.(contextual); ok {
		l.Context() // is made now, to be seen to end
	}
	name := lease.Name()
	h := c.locks[name]
	if h == nil {
		h = &history{held: map[Hold]string{}, taken: time.Now(), last: who}
		c.locks[name] = h
	}
	for other := range h.held {
		if l, ok := other.(contextual); ok && l.Err() != nil {
			c.late.Go(func() { c.mustEnd(l) })
		}
	}
	if other := h.rival(lease); other != nil {
		c.fault("%s got %s (fence %d) while %s had it (fence %d)", who, name, lease.Fence(), h.held[other], other.Fence())
	}
	if f := lease.Fence(); f != 0 && f <= h.fence && shares(lease).Kind == "" {
		c.fault("%s got %s with fence %d after %d", who, name, f, h.fence)
	}
	if who != h.last {
		h.turns++
	}
	now := time.Now()
	h.unused, h.taken = max(h.unused, now.Sub(h.taken)), now
	h.held[lease], h.last = who, who
	h.fence = max(h.fence, lease.Fence())
	h.holds++
	c.holds++
}

// Leave records the end of a hold, before Unlock is called or when the lock is lost.
func (c *Checker) Leave(lease Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.locks[lease.Name()]; h != nil {
		delete(h.held, lease)
	}
	if lease.Err() != nil {
		c.lost++
	}
}

// Beside returns the name of another holder that has the lock and may not, "" if there is none.
func (c *Checker) Beside(lease Hold) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.locks[lease.Name()]; h != nil {
		return h.held[h.rival(lease)]
	}
	return ""
}

// rival returns a holder that lease may not have beside it, nil if there is none.
func (h *history) rival(lease Hold) Hold {
	var beside []Sharing
	for other := range h.held {
		if other == lease || other.Err() != nil {
			continue
		}
		if beside = append(beside, shares(other)); !shares(lease).Fits(beside) {
			return other
		}
	}
	return nil
}

// contextual is a Hold with a context, as a *distlock.Lease has.
type contextual interface {
	Hold
	Context() context.Context
}

// mustEnd reports a fault if a hold is over by the clock, another has the lock, and the context does not end though this process has
// run since.
func (c *Checker) mustEnd(over contextual) {
	for naps := range 10 {
		time.Sleep(20 * time.Millisecond)
		c.mu.Lock()
		who, held := c.locks[over.Name()].held[over]
		late := held && over.Context().Err() == nil
		if late && naps == 9 {
			c.fault("the context of %s, who lost %s, does not end", who, over.Name())
		}
		c.mu.Unlock()
		if !late {
			return
		}
	}
}

func (c *Checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// Hold takes a lock, keeps it for d unless it is lost earlier, and releases it.
func (c *Checker) Hold(ctx context.Context, who string, m *distlock.Mutex, d time.Duration) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	c.Enter(who, lease)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-lease.Context().Done():
	}
	c.Leave(lease)
	lease.Unlock(context.WithoutCancel(ctx)) // fails if the lock was lost
	return nil
}

// visit is a hold whose end is known.
type visit struct {
	name  string
	fence uint64
}

func (v *visit) Name() string  { return v.name }
func (v *visit) Fence() uint64 { return v.fence }
func (v *visit) Err() error    { return nil }

// Visit records a hold that lasts for d.
func (c *Checker) Visit(who, name string, fence uint64, d time.Duration) {
	v := &visit{name, fence}
	c.Enter(who, v)
	time.Sleep(d)
	c.Leave(v)
}

// Holds returns the number of holds so far, and how many of them were lost.
func (c *Checker) Holds() (holds, lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holds, c.lost
}

// Times returns how often a lock was held so far.
func (c *Checker) Times(name string) int { return c.history(name).holds }

// Turns returns how often a lock's holder had another name than the one before.
func (c *Checker) Turns(name string) int { return c.history(name).turns }

// Unused returns the longest time between two holds of a lock.
func (c *Checker) Unused(name string) time.Duration { return c.history(name).unused }

// Fence returns the last fence of a lock.
func (c *Checker) Fence(name string) uint64 { return c.history(name).fence }

func (c *Checker) history(name string) history {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.locks[name]; h != nil {
		return *h
	}
	return history{}
}

// Holder returns the holder of a lock, "" if it is free. The lease is nil for another kind of Hold.
func (c *Checker) Holder(name string) (who string, lease *distlock.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.locks[name]; h != nil {
		for hold, who := range h.held {
			if hold.Err() == nil {
				lease, _ = hold.(*distlock.Lease)
				return who, lease
			}
		}
	}
	return "", nil
}

// Faults returns the violations so far.
func (c *Checker) Faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faults)
}

// mostLogged is the number of locks up to which Judge logs each of them.
const mostLogged = 20

// Judge fails the test if there were faults, or too few holds to show anything.
func (c *Checker) Judge(tb testing.TB, atLeast int) {
	tb.Helper()
	c.late.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		tb.Error(f)
	}
	if len(c.locks) <= mostLogged {
		for name, h := range c.locks {
			tb.Logf("%s: unused for %v at most", name, h.unused.Round(time.Millisecond))
		}
	}
	tb.Logf("%d holds, %d of them lost", c.holds, c.lost)
	if c.holds < atLeast {
		tb.Errorf("%d holds are too few to show anything, want %d", c.holds, atLeast)
	}
}
