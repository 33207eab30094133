// Package course has the ways in which the workers of rigs take locks: of every kind, with patience or without.
package course

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/exclusion"
)

// Permits is the limit of all semaphores.
const Permits = 3

// Shares returns what a judge wants to know of a mode: holds of one kind may be beside each other, if there are no more than room.
func Shares(mode driver.Mode) exclusion.Sharing {
	switch mode {
	case driver.Read:
		return exclusion.Sharing{Kind: "read", Room: math.MaxInt}
	case driver.Counted:
		return exclusion.Sharing{Kind: "permits", Room: Permits}
	}
	return exclusion.Sharing{}
}

// Way is how a lock is taken.
type Way struct {
	Mode    driver.Mode
	Try     bool
	GiveUp  time.Duration // 0: never
	Options []distlock.LockOption
}

// Hasty returns a way to a lock that is bound to fail now and then: it tries, or queues, and mostly gives up within 40 ms.
func Hasty(caps driver.Caps, mode driver.Mode) Way {
	w := Way{Mode: mode}
	switch rand.IntN(4) {
	case 0:
		w.Try = true
		return w
	case 1:
		if caps.QueueingOf(mode) != driver.QueueNever {
			w.Options = append(w.Options, distlock.Fair())
		}
	}
	if rand.IntN(3) > 0 {
		w.GiveUp = 1 + rand.N(40*time.Millisecond)
	}
	return w
}

// Take takes a lock.
func (w Way) Take(ctx context.Context, c *distlock.Client, name string) (*distlock.Lease, error) {
	if w.GiveUp > 0 {
		short, cancel := context.WithTimeout(ctx, w.GiveUp)
		defer cancel()
		ctx = short
	}
	var take, try func(context.Context) (*distlock.Lease, error)
	switch w.Mode {
	case driver.Read:
		m := c.RWMutex(name, w.Options...)
		take, try = m.RLock, m.TryRLock
	case driver.Write:
		m := c.RWMutex(name, w.Options...)
		take, try = m.Lock, m.TryLock
	case driver.Counted:
		s := c.Semaphore(name, Permits, w.Options...)
		take, try = s.Acquire, s.TryAcquire
	default:
		m := c.Mutex(name, w.Options...)
		take, try = m.Lock, m.TryLock
	}
	if w.Try {
		return try(ctx)
	}
	return take(ctx)
}
