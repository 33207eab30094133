package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/examples/internal/story"
)

// A job in the schedules of three hosts keeps a journal of its runs, so that one that a host has died in is done later.
//
// At each tick each host tries the lock once. The host that gets it does the runs that are due and that
// the journal doesn't have; the others skip the tick. At the third tick the host that runs the job dies
// in the middle. Its lock expires after its TTL of two seconds, and ticks are skipped until then. At the
// next one another host finds what isn't done, and does it from the start.
const (
	hosts    = 3
	ticks    = 5
	fatal    = 3 // the tick at which a host dies
	interval = 200 * time.Millisecond
	work     = 50 * time.Millisecond
)

// run does all runs up to tick that are not done, which is correct for one host at a time.
func run(_ context.Context, h *story.Host, j *journal, tick int) error {
	for due := 1; due <= tick; due++ {
		if j.done(due) {
			continue
		}
		h.Say("begins run %d", due)
		dies := j.begin(due)
		time.Sleep(work)
		if dies {
			h.Say("dies")
			return errors.Join(errDead, h.Die())
		}
		j.end(due)
		h.Say("has done run %d", due)
	}
	return nil
}

// runLocked calls run on one host at a time. A job without a journal needs Client.Cron, which keeps the lock until all hosts
// have tried it.
func runLocked(ctx context.Context, h *story.Host, j *journal, tick int) error {
	_, err := h.Mutex("cron:report").TryDo(ctx, func(ctx context.Context) error { return run(ctx, h, j, tick) })
	return err
}

var errDead = errors.New("the host is dead")

// simulate lets all hosts follow the schedule until the journal is complete, and returns their journal.
func simulate(ctx context.Context, s *story.Story, j *journal, run func(context.Context, *story.Host, *journal, int) error) (*journal, error) {
	all, err := s.Hosts(hosts)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	err = story.Together(all, 1, func(h *story.Host) error {
		for tick := 1; !j.done(ticks); tick++ {
			time.Sleep(time.Until(start.Add(time.Duration(tick) * interval)))
			err := run(ctx, h, j, min(tick, ticks))
			switch {
			case errors.Is(err, errDead):
				return nil
			case errors.Is(err, distlock.ErrUnavailable):
				h.Say("skips tick %d: %v", tick, err)
			case err != nil:
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
