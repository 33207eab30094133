//go:build linux

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/proof/internal/course"
	"github.com/distlock/distlock/proof/internal/judge"
)

// mixed are locks of which each caller wants another kind, and most soon give up. Where a store keeps kinds apart, who comes first with
// a name decides for which kind the others are refused; so one is for readers and writers only, and one for permits.
var mixed = []string{"mixed", "shared", "permits"}

// modeOf picks a mode for a mixed lock.
func modeOf(name string) driver.Mode {
	modes := []driver.Mode{driver.Exclusive, driver.Counted, driver.Read, driver.Write}
	switch name {
	case "shared":
		modes = modes[2:]
	case "permits":
		modes = modes[1:2]
	}
	return modes[rand.IntN(len(modes))]
}

// mixedTurn takes a mixed lock, mostly in vain, and now and then extends or downgrades it.
func (w *worker) mixedTurn(ctx context.Context, locks *distlock.Client) {
	name := pick(mixed)
	mode := modeOf(name)
	if !locks.Caps().Modes.Has(mode) {
		return
	}
	h := judge.Hold{Process: w.Process, ID: int(w.ids.Add(1)), Name: name, Call: now()}
	h.Sharing = course.Shares(mode)
	lease, err := course.Hasty(locks.Caps(), mode).Take(ctx, locks, name)
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
	if mode == driver.Write && locks.Caps().Downgrade && rand.IntN(2) == 0 {
		w.downgraded(lease, h)
	}
	lease.Unlock(context.Background())
}

// downgraded turns a writer's lease into a reader's, which is another hold.
func (w *worker) downgraded(lease *distlock.Lease, h judge.Hold) {
	h.ID, h.Fence, h.End, h.Call = int(w.ids.Add(1)), 0, 0, now()
	h.Sharing = course.Shares(driver.Read)
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
