package etcdlock

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

func requests(n int, mode driver.Mode) []driver.Request {
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = request("", mode)
	}
	return rs
}

func TestAllOrNothing(t *testing.T) {
	start := time.Now()
	b, other := shared(t), shared(t)
	rs := requests(5, driver.Exclusive)
	rs[1].Mode, rs[2].Mode = driver.Read, driver.Counted
	reader, permit := request(rs[1].Name, driver.Read), request(rs[2].Name, driver.Counted)
	acquire(t, other, reader)
	acquire(t, other, permit)
	busy := request(rs[4].Name, driver.Exclusive)
	acquire(t, other, busy)

	_, err := b.AcquireAll(t.Context(), rs)
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok || len(held.Holders) != 1 || held.Holders[0].Owner != busy.Owner {
		t.Fatalf("with one that is held: %v", err)
	}
	for i, want := range []int{0, 1, 1, 0, 1} {
		if got := keys(t, other, rs[i].Name); len(got) != want {
			t.Errorf("lock %d has keys %v; want %d", i, got, want)
		}
	}
	release(t, other, busy)
	grants, err := b.AcquireAll(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.AcquireAll(t.Context(), rs)
	if err != nil {
		t.Fatalf("the same owners again: %v", err)
	}
	for i := range rs {
		if grants[i].Fence == 0 || again[i].Fence <= grants[i].Fence || again[i].TTL < 30*time.Second-time.Since(start) {
			t.Errorf("lock %d: granted %+v, then %+v", i, grants[i], again[i])
		}
		release(t, b, rs[i])
	}
}

func TestAllOrNothingPassesNobody(t *testing.T) {
	b, other := shared(t), shared(t)
	r := request("", driver.Exclusive)
	acquire(t, other, r)
	place := queued(request(r.Name, driver.Exclusive))
	refused(t, other, place, driver.ErrHeld)
	release(t, other, r)
	if _, err := b.AcquireAll(t.Context(), []driver.Request{request("", driver.Exclusive), request(r.Name, driver.Exclusive)}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("past a place in line: %v", err)
	}
	acquire(t, other, place)
}

func TestTooManyTogetherAreTakenOneByOne(t *testing.T) {
	b := shared(t)
	if _, err := b.AcquireAll(t.Context(), requests(maxOps+1, driver.Exclusive)); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("%d locks: %v; want ErrSkip", maxOps+1, err)
	}
	rs := requests(maxOps, driver.Exclusive)
	if _, err := b.AcquireAll(t.Context(), rs); err != nil {
		t.Errorf("%d locks: %v", maxOps, err)
	}
}

// Those who want the same locks in different orders don't wait for each other: one of
// them has all.
func TestTogetherInAnyOrder(t *testing.T) {
	names := []string{request("", 0).Name, request("", 0).Name, request("", 0).Name}
	backends := []*Backend{shared(t), shared(t)}
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		b := backends[i%2]
		wg.Go(func() {
			for turns.Load() < 50 && t.Context().Err() == nil {
				var rs []driver.Request
				for k := range names {
					rs = append(rs, request(names[(i+k)%len(names)], driver.Exclusive))
				}
				_, err := b.AcquireAll(t.Context(), rs)
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				turns.Add(1)
				if n := holders.Add(1); n > 1 {
					t.Errorf("%d have all locks at once", n)
				}
				holders.Add(-1)
				for _, r := range rs {
					if err := b.Release(t.Context(), r.Hold); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// Readers and permits that are tried at once are not in each other's way.
func TestSharedTriesAtOnce(t *testing.T) {
	backends := []*Backend{shared(t), shared(t)}
	for _, mode := range []driver.Mode{driver.Read, driver.Counted} {
		name := request("", mode).Name
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r := request(name, mode)
				r.Limit = 20
				if _, err := backends[i%2].Acquire(t.Context(), r); err != nil {
					t.Errorf("%v: %v", mode, err)
				}
			})
		}
		wg.Wait()
	}
}

// "a" and "a/b" are two locks, though the keys of one lie among those of the other.
func TestNamesBelowNames(t *testing.T) {
	b, other := shared(t), shared(t)
	above := request("", driver.Exclusive)
	below := request(above.Name+"/b", driver.Exclusive)
	acquire(t, other, below)
	info, err := b.Inspect(t.Context(), above.Name)
	if err != nil || len(info.Holders) != 0 {
		t.Errorf("shown as a holder of the shorter name: %+v, %v", info, err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // somebody is always busy below
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r := request(fmt.Sprint(above.Name, "/", i), driver.Exclusive)
			if _, err := other.Acquire(t.Context(), r); err != nil {
				t.Error(err)
			}
			if err := other.Release(t.Context(), r.Hold); err != nil {
				t.Error(err)
			}
		}
	})
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		for _, queue := range []bool{false, true} {
			r, next := request(above.Name, mode), request(above.Name, driver.Exclusive)
			r.Queue = queue
			acquire(t, b, r)
			if mode == driver.Exclusive {
				refused(t, other, next, driver.ErrHeld)
				refused(t, other, queued(next), driver.ErrHeld)
				release(t, b, r)
				acquire(t, other, next)
				release(t, other, next)
				continue
			}
			release(t, b, r)
		}
	}
	close(stop)
	wg.Wait()
	release(t, other, below)
}
