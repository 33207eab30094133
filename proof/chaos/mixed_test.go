//go:build linux

package chaos

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/proof/chaos/internal/judge"
)

// mixed are locks of which each caller wants another kind, and most soon give up. Where a store keeps kinds apart, who comes first with
// a name decides for which kind the others are refused; so one is for readers and writers only, and one for permits.
var mixed = []string{"mixed", "shared", "permits"}

const permits = 3

// way is a kind of call for a mixed lock.
type way struct {
	mode driver.Mode
	kind string // of the hold, for the judge
	room int
	take func(ctx context.Context, c *distlock.Client, name string, o ...distlock.LockOption) (*distlock.Lease, error)
	try  func(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error)
}

var ways = []way{
	{driver.Exclusive, "", 1, func(ctx context.Context, c *distlock.Client, name string, o ...distlock.LockOption) (*distlock.Lease, error) {
		return c.Mutex(name, o...).Lock(ctx)
	}, func(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error) {
		return c.Mutex(name).TryLock(ctx)
	}},
	{driver.Counted, "permits", permits, func(ctx context.Context, c *distlock.Client, name string, o ...distlock.LockOption) (*distlock.Lease, error) {
		return c.Semaphore(name, permits, o...).Acquire(ctx)
	}, func(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error) {
		return c.Semaphore(name, permits).TryAcquire(ctx)
	}},
	{driver.Read, "read", math.MaxInt, func(ctx context.Context, c *distlock.Client, name string, o ...distlock.LockOption) (*distlock.Lease, error) {
		return c.RWMutex(name, o...).RLock(ctx)
	}, func(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error) {
		return c.RWMutex(name).TryRLock(ctx)
	}},
	{driver.Write, "", 1, func(ctx context.Context, c *distlock.Client, name string, o ...distlock.LockOption) (*distlock.Lease, error) {
		return c.RWMutex(name, o...).Lock(ctx)
	}, func(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error) {
		return c.RWMutex(name).TryLock(ctx)
	}},
}

// wayTo picks a way to take a mixed lock.
func wayTo(name string) way {
	switch name {
	case "shared":
		return ways[2+rand.IntN(2)]
	case "permits":
		return ways[1]
	}
	return ways[rand.IntN(len(ways))]
}

// mixedTurn takes a mixed lock, mostly in vain, and now and then extends or downgrades it.
func (w *worker) mixedTurn(ctx context.Context, locks *distlock.Client) {
	name := pick(mixed)
	way := wayTo(name)
	if !locks.Caps().Modes.Has(way.mode) {
		return
	}
	h := judge.Hold{Process: w.Process, ID: int(w.ids.Add(1)), Name: name, Kind: way.kind, Room: way.room, Call: now()}
	lease, err := way.call(ctx, locks, name)
	h.Grant = now()
	if err != nil {
		if !errors.Is(err, distlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			h.End = h.Grant
			w.emit(err.Error(), h)
		}
		return
	}
	h.Fence = lease.Fence()
	w.held(lease, h, func() {
		time.Sleep(rand.N(5 * time.Millisecond))
		if rand.IntN(4) == 0 {
			lease.Extend(lease.Context(), w.TTL) // fails if the lease was lost, or without an answer
		}
	})
	if way.mode == driver.Write && locks.Caps().Downgrade && rand.IntN(2) == 0 {
		w.downgraded(lease, h)
	}
	lease.Unlock(context.Background())
}

// call calls in one of several ways, of which two are bound to fail now and then.
func (way *way) call(ctx context.Context, locks *distlock.Client, name string) (*distlock.Lease, error) {
	var options []distlock.LockOption
	switch rand.IntN(4) {
	case 0:
		return way.try(ctx, locks, name)
	case 1:
		if locks.Caps().QueueingOf(way.mode) != driver.QueueNever {
			options = append(options, distlock.Fair())
		}
	}
	if rand.IntN(3) > 0 {
		short, cancel := context.WithTimeout(ctx, rand.N(40*time.Millisecond))
		defer cancel()
		ctx = short
	}
	return way.take(ctx, locks, name, options...)
}

// downgraded turns a writer's lease into a reader's, which is another hold.
func (w *worker) downgraded(lease *distlock.Lease, h judge.Hold) {
	h.ID, h.Kind, h.Room, h.Fence, h.End, h.Call = int(w.ids.Add(1)), "read", math.MaxInt, 0, 0, now()
	if lease.Downgrade(lease.Context()) != nil {
		return
	}
	h.Grant = now()
	w.held(lease, h, func() { time.Sleep(rand.N(5 * time.Millisecond)) })
}

// held reports a lease as held until f has returned or its context has ended.
func (w *worker) held(lease *distlock.Lease, h judge.Hold, f func()) {
	h.Owner, h.Deadline = lease.Owner(), deadline(lease)
	w.emit("grant", h)
	var ended atomic.Int64
	context.AfterFunc(lease.Context(), func() { ended.CompareAndSwap(0, now()) })
	f()
	h.Deadline = deadline(lease)
	ended.CompareAndSwap(0, now())
	h.End = ended.Load()
	w.emit("end", h) // before another can have the lock, should this process be killed
}
