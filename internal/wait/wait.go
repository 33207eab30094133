// Package wait has the ways in which goroutines wait: for a time, for a random time, for a
// signal, and for other goroutines.
package wait

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Sleep waits for d. It returns the error of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Jitter returns a random time between d/2 and 3d/2, so that goroutines that were refused
// together do not come back together.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d+1)
}

// Backoff returns base, doubled for each try before this one (the first is 0), up to limit. It is
// at least a microsecond.
func Backoff(try int, base, limit time.Duration) time.Duration {
	d := limit
	if try < 20 && base < limit>>try {
		d = base << try
	}
	return max(d, time.Microsecond)
}

// Signal notifies one goroutine, which receives from it. Notifications that have not been received
// yet count as one.
type Signal chan struct{}

// NewSignal returns a signal without a notification.
func NewSignal() Signal { return make(Signal, 1) }

// Notify notifies the receiver. It never blocks.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Group is a sync.WaitGroup that has the method Go before Go 1.25, too.
type Group struct{ sync.WaitGroup }

// Go calls f in a goroutine that Wait waits for.
func (g *Group) Go(f func()) {
	g.Add(1)
	go func() {
		defer g.Done()
		f()
	}()
}
