package gocronlock

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/distlocktest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
)

// hosts makes clients of different processes, as far as the store can tell.
func hosts(t *testing.T) func() *distlock.Client {
	store := memlock.NewStore()
	return func() *distlock.Client {
		c := must.Get(distlock.New(store.Connect(), nil))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func scheduler(t *testing.T, o gocron.SchedulerOption) gocron.Scheduler {
	s := must.Get(gocron.NewScheduler(o))(t)
	t.Cleanup(func() { s.Shutdown() })
	return s
}

// await waits for what must come.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// Of three schedulers that begin a job at once, one runs it.
func TestLocker(t *testing.T) {
	next := hosts(t)
	var runs, refused atomic.Int32
	end := make(chan struct{})
	for range 3 {
		s := scheduler(t, gocron.WithDistributedLocker(NewLocker(next(), "cron:")))
		must.Get(s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() { runs.Add(1); <-end }),
			gocron.WithName("report"), gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
				if errors.Is(err, distlock.ErrHeld) {
					refused.Add(1)
				}
			}))))(t)
		s.Start()
	}
	await(t, "two schedulers are refused, and one runs the job", func() bool { return refused.Load() == 2 && runs.Load() > 0 })
	expect.Equal(t, runs.Load(), 1, "the job ran")
	expect.Be(t, expect.Err(next().Mutex("cron:report").TryLock(t.Context())), distlock.ErrHeld, "while the job runs")
	close(end)
	await(t, "the lock is released", func() bool {
		_, err := next().Mutex("cron:report").TryLock(t.Context())
		return err == nil
	})
}

// One of two schedulers runs all jobs; the other goes on when it ends.
func TestElector(t *testing.T) {
	next := hosts(t)
	var electors []*Elector
	var runs [2]atomic.Int32
	for i := range 2 {
		e := NewElector(next().Election("scheduler"))
		t.Cleanup(func() { e.Close() })
		electors = append(electors, e)
		s := scheduler(t, gocron.WithDistributedElector(e))
		must.Get(s.NewJob(gocron.DurationJob(2*time.Millisecond), gocron.NewTask(func() { runs[i].Add(1) })))(t)
		s.Start()
	}
	await(t, "one leads", func() bool { return runs[0].Load()+runs[1].Load() > 10 })
	leader := 0
	if electors[1].IsLeader(t.Context()) == nil {
		leader = 1
	}
	if runs[1-leader].Load() != 0 || !errors.Is(electors[1-leader].IsLeader(t.Context()), ErrNotLeader) {
		t.Errorf("both lead: %d and %d runs", runs[0].Load(), runs[1].Load())
	}
	expect.OK(t, electors[leader].Close())
	await(t, "the other leads", func() bool { return runs[1-leader].Load() > 0 })
	expect.Be(t, electors[leader].IsLeader(t.Context()), ErrNotLeader, "after Close")
}

// An elector that waits for another's end has nothing to release.
func TestElectorThatFollows(t *testing.T) {
	next := hosts(t)
	c := next()
	leader := NewElector(c.Election("scheduler"))
	defer leader.Close()
	await(t, "one leads", func() bool { return leader.IsLeader(t.Context()) == nil })
	follower := NewElector(next().Election("scheduler"))
	await(t, "the other waits", func() bool {
		info, err := c.Inspect(t.Context(), "scheduler")
		return err == nil && len(info.Waiters) > 0
	})
	expect.OK(t, follower.Close())
	if err := follower.IsLeader(t.Context()); err == nil || err.Error() != ErrNotLeader.Error() {
		t.Error(err)
	}
}

// A release that fails is reported by Close: no other scheduler can lead yet.
func TestElectorThatCantResign(t *testing.T) {
	fake := distlocktest.NewWith(t, &distlock.Options{TTL: time.Minute, CallTimeout: time.Second})
	e := NewElector(fake.Client.Election("scheduler"))
	await(t, "it leads", func() bool { return e.IsLeader(t.Context()) == nil })
	fake.Down()
	expect.Be(t, e.Close(), distlock.ErrUnavailable, "the release failed, and Close returns")
	fake.Up()
}

// A name that no backend accepts is reported by IsLeader and Close.
func TestElectorThatCantCampaign(t *testing.T) {
	e := NewElector(hosts(t)().Election(""))
	await(t, "the campaign ends", func() bool { return errors.Is(e.IsLeader(t.Context()), distlock.ErrInvalid) })
	expect.Be(t, e.Close(), distlock.ErrInvalid)
}

// An elector that has lost its term does not lead, and campaigns again.
func TestElectorThatLosesItsTerm(t *testing.T) {
	c := hosts(t)()
	e := NewElector(c.Election("scheduler", distlock.MaxHold(time.Second)))
	defer e.Close()
	await(t, "it leads", func() bool { return e.IsLeader(t.Context()) == nil })
	await(t, "it leads no more", func() bool { return errors.Is(e.IsLeader(t.Context()), ErrNotLeader) })
	await(t, "it leads again", func() bool { return e.IsLeader(t.Context()) == nil })
}
