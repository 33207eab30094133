package model

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/trace"
)

// latest is how late a request may land.
const latest = 500 * time.Millisecond

// memory is a store that is exact: its time is virtual. vague is how real ones are judged.
var (
	memory = trace.Store{Late: latest, Queues: true}
	vague  = trace.Store{Late: latest, Early: 300 * time.Millisecond, Slack: 300 * time.Millisecond}
)

var errNetwork = errors.New("connection reset")

// faulty is a backend that loses requests and answers, and lets requests land late.
type faulty struct {
	*memlock.Backend
	rate int // one call in so many has no answer; 0: none
}

// try makes a call, or loses it.
func try[T any](f *faulty, ctx context.Context, call func(context.Context) T) (none T, _ error) {
	if f.rate > 0 && rand.N(f.rate) == 0 {
		switch rand.N(3) {
		case 0: // the request is lost
		case 1: // the answer is lost
			call(context.Background())
		case 2:
			time.AfterFunc(rand.N(latest), func() { call(context.Background()) })
		}
		return none, errNetwork
	}
	time.Sleep(rand.N(5 * time.Millisecond))
	answer := call(ctx)
	time.Sleep(rand.N(5 * time.Millisecond))
	return answer, nil
}

func (f *faulty) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	type answer struct {
		driver.Grant
		err error
	}
	a, fault := try(f, ctx, func(ctx context.Context) answer {
		g, err := f.Backend.Acquire(ctx, r)
		return answer{g, err}
	})
	return a.Grant, cmp.Or(fault, a.err)
}

func (f *faulty) Renew(ctx context.Context, holds []driver.Hold) []error {
	holds = slices.Clone(holds)
	errs, fault := try(f, ctx, func(ctx context.Context) []error { return f.Backend.Renew(ctx, holds) })
	if fault != nil {
		return slices.Repeat([]error{fault}, len(holds))
	}
	return errs
}

func (f *faulty) Release(ctx context.Context, h driver.Hold) error {
	err, fault := try(f, ctx, func(ctx context.Context) error { return f.Backend.Release(ctx, h) })
	return cmp.Or(fault, err)
}

// record has clients take one lock from each other, and returns what they asked of the store. One
// call in rate has no answer.
func record(t *testing.T, rate, leases int) []trace.Event {
	t.Helper()
	var events []trace.Event
	synctest.Test(t, func(t *testing.T) {
		store, began := memlock.NewStore(), time.Now()
		r := trace.New(func() time.Duration { return time.Since(began) }, func(e trace.Event) { events = append(events, e) })
		var group sync.WaitGroup
		for range 3 {
			c := must.Get(distlock.New(r.Backend(&faulty{store.Connect(), rate}), nil))(t)
			defer c.Close()
			lock := c.RWMutex("lock", distlock.WithTTL(3*time.Second))
			for range 2 { // the second one is handed the lock in its process
				group.Go(func() {
					for range leases {
						use(t.Context(), r, lock)
					}
				})
			}
		}
		group.Wait()
	})
	return events
}

// use takes the lock once, keeps it and perhaps extends or downgrades it.
func use(ctx context.Context, r *trace.Recorder, lock *distlock.RWMutex) {
	take := lock.Lock
	if rand.N(4) == 0 {
		take = lock.RLock
	}
	lease, err := take(ctx)
	if err != nil {
		return
	}
	if lease.Err() == nil {
		r.Lease(lease)
	}
	time.Sleep(rand.N(2 * time.Second))
	switch rand.N(4) {
	case 0:
		_ = lease.Extend(ctx, 5*time.Second)
	case 1:
		if lease.Mode() == distlock.Write && lease.Downgrade(ctx) == nil && lease.Err() == nil {
			r.Lease(lease)
		}
	}
	time.Sleep(rand.N(2 * time.Second))
	_ = lease.Unlock(ctx)
}

// TestLongTraces judges what the real code asked of a store, over networks with and without faults.
func TestLongTraces(t *testing.T) {
	for what, rate := range map[string]int{"calm": 0, "faults": 8} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			events := record(t, rate, 2)
			for _, store := range []trace.Store{memory, vague} {
				v := trace.Judge(t, ".", store, events)
				if !v.Allowed {
					t.Errorf("%d events: %s\n%s", len(events), v.Output, trace.Module(events))
				}
				t.Logf("%d events: %s", len(events), v.States())
			}
		})
	}
}

// TestLongPassing judges an attempt of one who has come late (c), which took a lock that was free for the first in the queue (b), and
// went back, so that b was refused once more. Where a store allows that, b has the lock before c.
func TestLongPassing(t *testing.T) {
	var events []trace.Event
	call := func(number int, kind, owner string) {
		events = append(events, trace.Event{Is: "call", Call: number, Kind: kind, Owner: owner, Mode: driver.Exclusive, TTL: time.Minute, Queue: kind == "acquire"})
	}
	returns := func(number int, owner, answer string, fence uint64) {
		events = append(events, trace.Event{Is: "return", Call: number, Owner: owner, Answer: answer, Fence: fence, Last: fence})
	}
	call(1, "acquire", "a")
	returns(1, "a", "granted", 1)
	call(2, "acquire", "b")
	returns(2, "b", "held", 0)
	call(3, "release", "a")
	returns(3, "a", "released", 0)
	call(4, "acquire", "c")
	call(5, "acquire", "b")
	returns(5, "b", "held", 0)
	call(6, "acquire", "b")
	returns(4, "c", "held", 0)
	returns(6, "b", "granted", 2)
	for i := range events {
		events[i].At = time.Duration(i) * time.Millisecond
	}
	passes := memory
	passes.Passes = true
	for store, want := range map[trace.Store]bool{memory: false, passes: true} {
		if v := trace.Judge(t, ".", store, events); v.Allowed != want {
			t.Errorf("allowed by %+v: %v", store, v.Allowed)
		}
	}
	for i := range events { // c keeps what it took
		if e := &events[i]; e.Is == "return" && e.Call == 4 {
			e.Answer, e.Fence, e.Last = "granted", 2, 2
		} else if e.Is == "return" && e.Call == 6 {
			e.Answer, e.Fence, e.Last = "held", 0, 0
		}
	}
	if v := trace.Judge(t, ".", passes, events); v.Allowed {
		t.Error("an attempt may pass the queue, and stay")
	}
}

// TestLongWrongTraces changes one event of a run.
func TestLongWrongTraces(t *testing.T) {
	for what, change := range map[string]func([]trace.Event) bool{
		"two holders": func(events []trace.Event) bool {
			return first(events, func(e *trace.Event) bool {
				if e.Is != "return" || e.Answer != "held" || e.Mode == driver.Read {
					return false
				}
				e.Answer, e.Fence, e.Last = "granted", events[len(events)-1].Fence+1e6, events[len(events)-1].Fence+1e6
				return true
			})
		},
		"a fence goes back": func(events []trace.Event) bool {
			granted, after := false, map[int]bool{} // calls that were made after a grant was known
			return first(events, func(e *trace.Event) bool {
				switch {
				case e.Is == "call":
					after[e.Call] = granted
				case e.Is != "return" || e.Answer != "granted":
				case after[e.Call]:
					e.Fence, e.Last = 1, 1
					return true
				default:
					granted = granted || e.Fence > 1
				}
				return false
			})
		},
		"another's renewal": func(events []trace.Event) bool {
			owner, call := "", 0 // one that has gone, and a renewal by another after that
			for _, e := range events {
				if owner == "" && e.Is == "return" && e.Answer == "released" {
					owner = e.Owner
				}
				if owner != "" && e.Is == "call" && e.Kind == "renew" && e.Owner != owner {
					call = e.Call
				}
			}
			for i := range events {
				if events[i].Call == call && call != 0 {
					events[i].Owner = owner
				}
			}
			return call != 0
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			changed := record(t, 0, 2)
			for !change(changed) { // a run may have nothing of the kind
				changed = record(t, 0, 2)
			}
			for _, store := range []trace.Store{memory, vague} {
				if v := trace.Judge(t, ".", store, changed); v.Allowed {
					t.Errorf("it is accepted:\n%s", trace.Module(changed))
				} else {
					t.Logf("refused after %d of %d events", v.Reached, len(changed))
				}
			}
		})
	}
}

// first calls change for one event after the other until it reports true.
func first(events []trace.Event, change func(*trace.Event) bool) bool {
	for i := range events {
		if change(&events[i]) {
			return true
		}
	}
	return false
}
