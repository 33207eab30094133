// Cron is a job in the schedules of three hosts, so that it also runs while one of them is down. It
// must run once at each tick, not three times.
//
// At each tick each host acquires the lock, checks the journal whether the tick's run is done, and runs
// it if it isn't. The lock makes the hosts take turns; the journal has the state. At the third tick the
// host that runs the job dies in the middle. Its lock expires after its TTL of two seconds. Then another
// host finds that the run isn't done, and does it from the start, and all catch up.
package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

const (
	hosts    = 3
	ticks    = 5
	fatal    = 3 // the tick at which a host dies
	interval = 200 * time.Millisecond
	work     = 50 * time.Millisecond
)

func main() {
	story.Main(func(ctx context.Context, s *story.Story) error {
		s.Title("Three hosts with the same schedule")
		if _, err := simulate(ctx, s, &journal{}, run); err != nil {
			return err
		}
		s.Title("Under a lock, and one of them dies at tick 3")
		_, err := simulate(ctx, s, &journal{fatal: fatal}, runLocked)
		return err
	})
}

// run runs the tick's job unless it is done, which is correct for one host at a time.
func run(_ context.Context, h *story.Host, j *journal, tick int) error {
	if j.done(tick) {
		return nil
	}
	h.Say("begins run %d", tick)
	dies := j.begin(tick)
	time.Sleep(work)
	if dies {
		h.Say("dies")
		return errors.Join(errDead, h.Die())
	}
	j.end(tick)
	h.Say("has done run %d", tick)
	return nil
}

// runLocked calls run on one host at a time. All ticks use one lock, so that runs do not overlap
// when one takes longer than the interval.
func runLocked(ctx context.Context, h *story.Host, j *journal, tick int) error {
	return h.Mutex("cron:report").Do(ctx, func(ctx context.Context) error {
		return run(ctx, h, j, tick)
	})
}

var errDead = errors.New("the host is dead")

// simulate lets all hosts follow the schedule, and returns their journal.
func simulate(ctx context.Context, s *story.Story, j *journal, run func(context.Context, *story.Host, *journal, int) error) (*journal, error) {
	all, err := s.Hosts(ctx, hosts)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	err = story.Together(all, 1, func(h *story.Host) error {
		for tick := range ticks {
			time.Sleep(time.Until(start.Add(time.Duration(tick) * interval)))
			err := run(ctx, h, j, tick+1)
			if errors.Is(err, errDead) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.Say("the journal", "has %d runs for %d ticks", len(j.ended), ticks)
	return j, err
}

// journal stands for a table that survives every host.
type journal struct {
	mu           sync.Mutex
	began, ended []int // ticks
	fatal        int   // the tick at which the first host dies; 0 for none
}

func (j *journal) done(tick int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.ended, tick)
}

// begin records a run, and reports whether the calling host dies in it.
func (j *journal) begin(tick int) (dies bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.began = append(j.began, tick)
	if dies = tick == j.fatal; dies {
		j.fatal = 0
	}
	return dies
}

func (j *journal) end(tick int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = append(j.ended, tick)
}
