package distlock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock/distlock/internal/tick"
	"github.com/distlock/distlock/internal/wait"
)

// Cron runs f if no other host runs this tick of the job, and reports whether it ran f. Every host calls it at each tick of
// the same schedule, which are so far apart as every says:
//
//	ran, err := locks.Cron(ctx, "report", 5*time.Minute, report)
//
// A tick is not run twice, however short the job is, as long as the hosts' clocks differ by less than two thirds of every and
// less than 90 s: the lock is held for the shorter of these at least, or for Options.MaxHold if that is less, also if the program
// ends or dies meanwhile. If they differ by more than a third of every, a host that is behind may hold one tick's lock
// at the next tick of the others; if it does not come to that tick itself, nobody runs it. Where a
// hold ends with its session (Caps.Session), Cron returns only then, and a host that dies lets go when its session ends: then a
// host whose clock is behind runs the tick again. Where a hold ends late (Caps.Late), so does
// a tick's; where it ends only for those who watch it (Caps.Observed without Late), Cron is ErrUnsupported.
//
// A job that runs for longer keeps the lock until it ends, and the ticks that come meanwhile are skipped. After a host has died
// in the middle, the job runs again at the first tick that comes a TTL later, which is a quarter of every at most.
//
// The context of f is the lease's, as for Mutex.TryDo. If another host has the tick, Cron returns false and no error. The lock
// is a Mutex with this name.
func (c *Client) Cron(ctx context.Context, name string, every time.Duration, f func(ctx context.Context) error) (ran bool, err error) {
	const op = "cron"
	switch {
	case every <= 0:
		return false, fail(op, name, invalid("a job that is started every %v; want more than 0", every))
	case f == nil:
		return false, noWork(op, name)
	}
	minHold, ttl := tick.Terms(every, c.opts.TTL, c.caps)
	if c.opts.MaxHold > 0 {
		minHold = min(minHold, c.opts.MaxHold)
	}
	job := c.Mutex(name, MinHold(minHold), shortened(ttl))
	lease, err := job.l.try(endingWith(ctx), op)
	switch {
	case errors.Is(err, ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	begun := c.now()
	err = runUnder(lease, f)
	if c.caps.Session && !errors.Is(err, ErrLost) {
		_ = wait.Sleep(ctx, begun+minHold-c.now()) // Close waits for the rest, if ctx ends
	}
	return true, err
}

// shortened sets a TTL that may be below the client's. The client's margin may be too long for it.
func shortened(ttl time.Duration) LockOption {
	return LockOption{func(s *spec) {
		if ttl < s.terms.TTL {
			s.terms.TTL, s.terms.Margin = ttl, 0
		}
	}}
}
