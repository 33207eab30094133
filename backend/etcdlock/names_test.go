package etcdlock

import (
	"fmt"
	"sync"
	"testing"

	"github.com/distlock/distlock/driver"
)

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
