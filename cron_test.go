package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/tick"
)

// fleet are hosts with one schedule and clocks that differ.
type fleet struct {
	every   time.Duration
	skews   []time.Duration
	connect func() *rig
	job     func(*rand.Rand) (takes time.Duration, dies bool) // of one run
	lives   bool                                              // a host's program lives on between ticks

	mu       sync.Mutex
	runs     []cronRun
	attempts map[int][]time.Time // of each tick
}

type cronRun struct {
	tick       int
	start, end time.Time
	died       bool
}

var errDied = errors.New("this host has died")

// follow starts the job at each tick on each host, whatever its last run does.
func (f *fleet) follow(t *testing.T, ticks int, random *rand.Rand) {
	f.attempts = map[int][]time.Time{}
	start := time.Now()
	var all sync.WaitGroup
	for _, skew := range f.skews {
		all.Go(func() {
			h := &cronHost{fleet: f}
			for n := range ticks {
				time.Sleep(time.Until(start.Add(time.Duration(n)*f.every + skew + f.late(random))))
				f.mu.Lock()
				f.attempts[n] = append(f.attempts[n], time.Now())
				takes, dies := f.job(random)
				f.mu.Unlock()
				all.Go(func() { h.start(t, n, takes, dies) })
			}
		})
	}
	all.Wait()
}

// late returns by how much a host starts the job too late.
func (f *fleet) late(random *rand.Rand) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(random.Int64N(int64(f.every / 60)))
}

// cronHost is a host, whose program is killed with its run.
type cronHost struct {
	*fleet
	mu     sync.Mutex
	client *distlock.Client
	rig    *rig
}

func (h *cronHost) program(t *testing.T) (*distlock.Client, *rig) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client == nil || !h.lives {
		h.rig = h.connect()
		h.client = mortal(t, h.rig)
	}
	return h.client, h.rig
}

func (h *cronHost) start(t *testing.T, n int, takes time.Duration, dies bool) {
	c, r := h.program(t)
	ran, err := c.Cron(t.Context(), "report", h.every, func(context.Context) error {
		run := cronRun{tick: n, start: time.Now(), died: dies}
		time.Sleep(takes)
		run.end = time.Now()
		h.fleet.mu.Lock()
		h.runs = append(h.runs, run)
		h.fleet.mu.Unlock()
		if dies {
			r.die()
			h.mu.Lock()
			h.client = nil
			h.mu.Unlock()
			return errDied
		}
		return nil
	})
	if err != nil && !errors.Is(err, errDied) || err != nil && !ran {
		t.Errorf("tick %d: %v, %v", n, ran, err)
	}
	if !h.lives {
		_ = c.Close()
	}
}

// mortal returns a client that may be dead at the end of the test.
func mortal(t *testing.T, r *rig) *distlock.Client {
	c := must.Get(distlock.New(r, nil))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// die makes all calls fail before they reach the backend.
func (r *rig) die() {
	r.set(func(r *rig) {
		r.renew = func(_ context.Context, holds []driver.Hold, _ renewer) []error { return allErrors(holds, errNetwork) }
		r.release = func(context.Context, driver.Hold, releaser) error { return errNetwork }
	})
}

// check wants one run of each tick. One without a run is right if each host came while another run went on.
func (f *fleet) check(t *testing.T, ticks int, skips bool) {
	count := map[int]int{}
	for _, r := range f.runs {
		count[r.tick]++
	}
	none := 0
	for n := range ticks {
		switch {
		case count[n] > 1:
			t.Errorf("tick %d was run %d times", n, count[n])
		case count[n] == 0 && !skips:
			t.Errorf("tick %d was not run", n)
		case count[n] == 0:
			none++
			for _, at := range f.attempts[n] {
				if !f.taken(at) {
					t.Errorf("tick %d was not run, although the lock was free at %v", n, at)
				}
			}
		}
	}
	t.Logf("%d runs for %d ticks, %d without one", len(f.runs), ticks, none)
}

// taken reports whether a run may have held the lock.
func (f *fleet) taken(at time.Time) bool {
	minHold, ttl := tick.Terms(f.every, distlock.DefaultTTL, driver.Caps{})
	for _, r := range f.runs {
		until := r.end
		if least := r.start.Add(minHold); r.died || until.Before(least) {
			until = until.Add(ttl)
			if until.Before(least) {
				until = least
			}
		}
		if !at.Before(r.start) && !at.After(until) {
			return true
		}
	}
	return false
}

// Five hosts whose clocks differ by up to 30 s run each tick once, whatever the job takes, and although some are killed in
// the middle.
func TestCronRunsEachTickOnce(t *testing.T) {
	skews := []time.Duration{0, 7 * time.Second, 13 * time.Second, 22 * time.Second, 30 * time.Second}
	drawn := func(takes ...time.Duration) func(*rand.Rand) (time.Duration, bool) {
		return func(r *rand.Rand) (time.Duration, bool) { return takes[r.IntN(len(takes))], false }
	}
	killed := func(job func(*rand.Rand) (time.Duration, bool)) func(*rand.Rand) (time.Duration, bool) {
		return func(r *rand.Rand) (time.Duration, bool) {
			takes, _ := job(r)
			return takes, r.IntN(5) == 0
		}
	}
	short := drawn(10*time.Millisecond, time.Second, 14*time.Second, 39*time.Second)
	long := drawn(10*time.Millisecond, 20*time.Second, 59*time.Second, 61*time.Second, 150*time.Second)
	for _, c := range []struct {
		what    string
		job     func(*rand.Rand) (time.Duration, bool)
		session bool
		skips   bool
	}{
		{what: "jobs of 10 ms", job: drawn(10 * time.Millisecond)},
		{what: "short jobs", job: short},
		{what: "short jobs, some killed", job: killed(short)},
		{what: "jobs longer than the schedule", job: long, skips: true},
		{what: "jobs longer than the schedule, some killed", job: killed(long), skips: true},
		{what: "short jobs in a session", job: short, session: true},
		{what: "long jobs in a session", job: long, session: true, skips: true},
	} {
		for _, lives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lives %v", c.what, lives), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const ticks = 100
					store := memlock.NewStore()
					f := &fleet{every: time.Minute, skews: skews, job: c.job, lives: lives}
					f.connect = func() *rig {
						if c.session {
							return newSession(store)
						}
						return &rig{Backend: store.Connect()}
					}
					f.follow(t, ticks, rand.New(rand.NewPCG(1, uint64(len(c.what)))))
					f.check(t, ticks, c.skips)
				})
			})
		}
	}
}

// A hold that Cron has taken outlives a program that dies at once, for long enough.
func TestCronOfAHostThatDiesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		c, other := mortal(t, r), client(t, store.Connect(), nil)
		start := time.Now()
		job := func(context.Context) error { r.die(); return errDied }
		ran, err := c.Cron(t.Context(), "x", 5*time.Minute, job)
		if !ran || !errors.Is(err, errDied) {
			t.Fatal(ran, err)
		}
		next := mustLock(t, other.Mutex("x"))
		within(t, "the next holder came", time.Since(start), 90*time.Second, time.Second)
		mustUnlock(t, next)
	})
}

// A short job costs one request on a backend with TTLs, and none at its end.
func TestCronOfAShortJobAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		calls := 0
		r.renew = func(ctx context.Context, holds []driver.Hold, next renewer) []error { calls++; return next(ctx, holds) }
		c := must.Get(distlock.New(r, nil))(t)
		if ran, err := c.Cron(t.Context(), "x", time.Hour, func(context.Context) error { return nil }); !ran || err != nil {
			t.Fatal(ran, err)
		}
		expect.OK(t, c.Close(), "Close")
		if n := r.releases.Load(); calls > 0 || n > 0 {
			t.Errorf("%d renewals, %d releases", calls, n)
		}
	})
}

func TestCronRefusesWrongArguments(t *testing.T) {
	c := client(t, memlock.New(), nil)
	none := func(context.Context) error { return nil }
	_, err := c.Cron(t.Context(), "x", 0, none)
	expect.Be(t, err, distlock.ErrInvalid, "a schedule of 0")
	_, err = c.Cron(t.Context(), "x", time.Minute, nil)
	expect.Be(t, err, distlock.ErrInvalid, "no function")
	_, err = c.Cron(t.Context(), "", time.Minute, none)
	expect.Be(t, err, distlock.ErrInvalid, "no name")
}

// Margins and schedules that would contradict each other do not.
func TestCronFitsAnySchedule(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour, 1 << 62} {
		synctest.Test(t, func(t *testing.T) {
			c := must.Get(distlock.New(newRig(), &distlock.Options{TTL: time.Minute, Margin: 20 * time.Second}))(t)
			ran, err := c.Cron(t.Context(), "x", every, func(context.Context) error { return nil })
			if !ran || err != nil {
				t.Errorf("every %v: %v, %v", every, ran, err)
			}
			minHold, ttl := tick.Terms(every, time.Minute, c.Caps())
			if minHold <= 0 || minHold+ttl >= every || ttl <= 0 {
				t.Errorf("every %v: at least %v, TTL %v", every, minHold, ttl)
			}
			expect.OK(t, c.Close(), "Close")
		})
	}
}

// A client's MaxHold, which is shorter than a tick is held otherwise, is no wrong argument of Cron: the tick is held for so long.
func TestCronUnderMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c, other := client(t, store.Connect(), &distlock.Options{MaxHold: 40 * time.Second}), client(t, store.Connect(), nil)
		for _, after := range []struct {
			wait time.Duration
			ran  bool
		}{{0, true}, {39 * time.Second, false}, {2 * time.Second, true}} {
			time.Sleep(after.wait)
			runs := c
			if after.wait > 0 {
				runs = other
			}
			ran, err := runs.Cron(t.Context(), "job", time.Hour, func(context.Context) error { return nil })
			if ran != after.ran || err != nil {
				t.Errorf("after %v more: %v, %v", after.wait, ran, err)
			}
		}
	})
}

// Of two hosts whose clocks are apart by less than a third of the schedule none leaves a tick to nobody, whichever comes; up to
// two thirds none runs a tick again.
func TestCronOnClocksApart(t *testing.T) {
	const every, ticks = time.Minute, 20
	for apart, missed := range map[time.Duration]bool{19 * time.Second: false, 39 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			store, start := memlock.NewStore(), time.Now()
			var runs [ticks]atomic.Int32
			var hosts sync.WaitGroup
			for host, behind := range []time.Duration{0, apart} {
				c := client(t, store.Connect(), nil)
				hosts.Go(func() {
					for tick := range ticks {
						time.Sleep(time.Until(start.Add(time.Duration(tick)*every + behind)))
						if tick%4 == 3*(1-host) { // each is away now and then
							continue
						}
						ran, err := c.Cron(t.Context(), "job", every, func(context.Context) error { return nil })
						if expect.OK(t, err, "Cron"); ran {
							runs[tick].Add(1)
						}
					}
				})
			}
			hosts.Wait()
			never := 0
			for tick := range runs {
				if n := runs[tick].Load(); n > 1 {
					t.Errorf("%v apart: tick %d ran %d times", apart, tick, n)
				} else if n == 0 {
					never++
				}
			}
			if never > 0 != missed {
				t.Errorf("%v apart: %d ticks were left to nobody", apart, never)
			}
		})
	}
}
