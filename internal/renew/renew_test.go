package renew_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

var errNetwork = errors.New("network down")

// rig is a Watchdog on a backend whose answers the test chooses.
type rig struct {
	*renew.Watchdog
	start time.Time

	mu    sync.Mutex
	calls [][]driver.Hold
	renew func(context.Context, driver.Hold) error
	tasks sync.WaitGroup
	ahead atomic.Int64 // how long the process was paused
}

func (r *rig) Begin() { r.tasks.Add(1) }
func (r *rig) End()   { r.tasks.Done() }

func newRig(t *testing.T) *rig {
	r := &rig{start: time.Now(), renew: func(context.Context, driver.Hold) error { return nil }}
	life, end := context.WithCancel(context.Background())
	r.Watchdog = renew.New(renew.Config{Life: life, Now: r.now, Renew: r.call, Tasks: r})
	t.Cleanup(func() {
		end()
		r.Close(func(renew.Holder) bool { return false })
		r.Stop()
		r.tasks.Wait()
	})
	return r
}

func (r *rig) now() time.Duration { return time.Since(r.start) + time.Duration(r.ahead.Load()) }

func (r *rig) call(ctx context.Context, holds []driver.Hold) []error {
	r.mu.Lock()
	r.calls = append(r.calls, holds)
	f := r.renew
	r.mu.Unlock()
	errs := make([]error, len(holds))
	for i, h := range holds {
		errs[i] = f(ctx, h)
	}
	return errs
}

// renewals returns the number of calls since the last renewals.
func (r *rig) renewals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.calls)
	r.calls = nil
	return n
}

func (r *rig) answer(f func(context.Context, driver.Hold) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew = f
}

// holder records the calls of the Watchdog.
type holder struct {
	renew.Hold
	r     *rig
	name  string
	terms renew.Terms

	mu      sync.Mutex
	lost    error
	unknown bool
	lostAt  time.Duration
	answers int
}

func (h *holder) Request(ttl time.Duration) driver.Hold {
	return driver.Hold{Name: h.name, Owner: "o", Mode: driver.Exclusive, TTL: ttl}
}

func (h *holder) Lose(why error, unknown bool) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost, h.unknown, h.lostAt = why, unknown, h.r.now()
	return func() {}
}

func (h *holder) Answered(error, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers++
}

// add puts a hold with a TTL of 30 s under watch; change may change its terms.
func (r *rig) add(t *testing.T, name string, change func(*renew.Terms)) *holder {
	t.Helper()
	h := &holder{r: r, name: name, terms: renew.Terms{TTL: 30 * time.Second, Margin: time.Second, CallTimeout: 5 * time.Second}}
	if change != nil {
		change(&h.terms)
	}
	if !r.Add(&h.Hold, h, &h.terms, r.now(), h.terms.TTL) {
		t.Fatal("the Watchdog has ended")
	}
	return h
}

// answered returns the number of answered renewals.
func (h *holder) answered() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answers
}

// lostBy fails unless h was lost for that reason, at that time.
func (h *holder) lostBy(t *testing.T, why error, unknown bool, at time.Duration) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !errors.Is(h.lost, why) || h.unknown != unknown || h.lostAt != at {
		t.Errorf("%s: lost after %v: %v, unknown %v; want after %v: %v, unknown %v", h.name, h.lostAt, h.lost, h.unknown, at, why, unknown)
	}
}

func each(t *testing.T, tests map[string]func(*testing.T, *rig)) {
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newRig(t)) })
		})
	}
}

// An answer that comes after the end of trust, as after a pause of the process, brings nothing back.
func TestLateAnswers(t *testing.T) {
	const pause = 25 * time.Second
	each(t, map[string]func(*testing.T, *rig){
		"of a renewal": func(t *testing.T, r *rig) {
			r.answer(func(context.Context, driver.Hold) error {
				r.ahead.Store(int64(pause))
				return nil
			})
			h := r.add(t, "a", nil)
			time.Sleep(29 * time.Second) // the Watchdog's timer knows nothing of the pause
			synctest.Wait()
			expect.Equal(t, h.Trust(), 29*time.Second, "trust until")
			h.lostBy(t, renew.ErrDeadline, true, 29*time.Second+pause)
		},
		"of a reservation": func(t *testing.T, r *rig) {
			h := r.add(t, "a", nil)
			time.Sleep(5 * time.Second)
			reserved := must.Get(r.Reserve(t.Context(), func() {}, &h.Hold))(t)
			r.ahead.Store(int64(pause))
			reserved.End(5*time.Second, 30*time.Second)
			expect.Equal(t, h.Trust(), 29*time.Second, "trust until")
			time.Sleep(5 * time.Second) // until the renewal would be due
			synctest.Wait()
			h.lostBy(t, renew.ErrDeadline, true, 10*time.Second+pause)
		},
	})
}

func TestWatchdog(t *testing.T) {
	each(t, map[string]func(*testing.T, *rig){
		"a hold is renewed at a third of its TTL": func(t *testing.T, r *rig) {
			h := r.add(t, "a", nil)
			time.Sleep(9 * time.Second)
			expect.Equal(t, r.renewals(), 0, "renewals after 9 s")
			time.Sleep(2 * time.Second)
			if n := r.renewals(); n != 1 || h.Trust() < 38*time.Second || h.answered() != 1 {
				t.Errorf("%d renewals after 11 s, trusted until %v", n, h.Trust())
			}
		},
		"holds that are due together share a call": func(t *testing.T, r *rig) {
			for i := range 100 {
				r.add(t, fmt.Sprint(i), nil)
			}
			time.Sleep(11 * time.Second)
			expect.Equal(t, r.renewals(), 1, "calls for 100 holds")
		},
		"without answers a hold is lost a margin before its end": func(t *testing.T, r *rig) {
			r.answer(func(context.Context, driver.Hold) error { return errNetwork })
			h := r.add(t, "a", nil)
			time.Sleep(time.Minute)
			h.lostBy(t, errNetwork, true, 29*time.Second)
			if n := r.renewals(); n < 3 {
				t.Errorf("%d renewals, want some more", n)
			}
		},
		"a hold that the backend does not have is lost": func(t *testing.T, r *rig) {
			r.answer(func(context.Context, driver.Hold) error { return driver.ErrLost })
			h := r.add(t, "a", nil)
			time.Sleep(time.Minute)
			h.lostBy(t, renew.ErrGone, false, 10*time.Second)
		},
		"a silent hold does not stall others": func(t *testing.T, r *rig) {
			r.answer(func(ctx context.Context, h driver.Hold) error {
				if h.Name != "silent" {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
			silent, other := r.add(t, "silent", nil), r.add(t, "other", nil)
			time.Sleep(10 * time.Minute)
			silent.lostBy(t, context.DeadlineExceeded, true, 29*time.Second)
			other.lostBy(t, nil, false, 0)
		},
		"a fixed hold is not renewed": func(t *testing.T, r *rig) {
			h := r.add(t, "a", func(terms *renew.Terms) { terms.Fixed = true })
			time.Sleep(time.Minute)
			h.lostBy(t, renew.ErrDeadline, true, 29*time.Second)
			expect.Equal(t, r.renewals(), 0, "renewals")
		},
		"MaxHold ends a hold that is renewed": func(t *testing.T, r *rig) {
			h := r.add(t, "a", func(terms *renew.Terms) { terms.MaxHold = time.Minute })
			time.Sleep(2 * time.Minute)
			h.lostBy(t, renew.ErrMaxHold, true, time.Minute)
		},
		"after Close nothing can be added, and after Stop nothing is renewed": func(t *testing.T, r *rig) {
			h, other := r.add(t, "a", nil), r.add(t, "b", nil)
			if all := r.Close(func(o renew.Holder) bool { return o == renew.Holder(h) }); len(all) != 2 || all[0] == all[1] {
				t.Errorf("Close returned %v", all)
			}
			time.Sleep(55 * time.Second) // between two renewals
			if n := r.renewals(); n == 0 || r.Add(&renew.Hold{}, h, &h.terms, r.now(), time.Minute) {
				t.Errorf("%d renewals, or a hold was added", n)
			}
			if h.Trust() < time.Minute || other.Trust() > 30*time.Second {
				t.Errorf("the one that is kept is trusted until %v, the other until %v", h.Trust(), other.Trust())
			}
			r.Stop()
			time.Sleep(time.Minute)
			if n := r.renewals(); n != 0 || r.Add(&renew.Hold{}, h, &h.terms, r.now(), time.Minute) {
				t.Errorf("%d renewals, or a hold was added", n)
			}
		},
	})
}

func TestReserve(t *testing.T) {
	each(t, map[string]func(*testing.T, *rig){
		"a reserved hold is not renewed, and ends in time": func(t *testing.T, r *rig) {
			h := r.add(t, "a", nil)
			must.Get(r.Reserve(t.Context(), func() {}, &h.Hold))(t)
			time.Sleep(time.Minute)
			h.lostBy(t, renew.ErrDeadline, true, 29*time.Second)
			expect.Equal(t, r.renewals(), 0, "renewals")
		},
		"a reservation waits for a renewal in flight": func(t *testing.T, r *rig) {
			r.answer(func(context.Context, driver.Hold) error { time.Sleep(2 * time.Second); return nil })
			h := r.add(t, "a", nil)
			time.Sleep(11 * time.Second)
			reserved, err := r.Reserve(t.Context(), func() {}, &h.Hold)
			if err != nil || r.now() != 12*time.Second {
				t.Errorf("reserved after %v: %v", r.now(), err)
			}
			if ttl, err := reserved.Extension(time.Hour); ttl != time.Hour+time.Second || err != nil {
				t.Errorf("Extension: %v, %v", ttl, err)
			}
			if err := reserved.Renew(time.Hour + time.Second); err != nil || h.Trust() != time.Hour+12*time.Second {
				t.Errorf("trusted until %v: %v", h.Trust(), err)
			}
		},
		"Remove stops the call of a reservation": func(t *testing.T, r *rig) {
			h := r.add(t, "a", nil)
			ctx, stop := context.WithCancel(t.Context())
			reserved := must.Get(r.Reserve(ctx, stop, &h.Hold))(t)
			go func() {
				<-ctx.Done()
				reserved.End(0, 0)
			}()
			if !r.Remove(t.Context(), &h.Hold) || ctx.Err() == nil {
				t.Error("the call was not stopped")
			}
			expect.Be(t, expect.Err(r.Reserve(t.Context(), stop, &h.Hold)), driver.ErrLost, "reservation of a hold that was removed")
		},
	})
}
