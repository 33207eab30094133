package quorum_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// remembering is a member that does not let a released Owner come back: a release that arrives late would take its
// vote away.
type remembering struct {
	*link
	t *testing.T

	mu       sync.Mutex
	released map[string]bool
	asked    int
}

func (m *remembering) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	m.mu.Lock()
	if m.asked++; m.released[r.Owner] {
		m.t.Errorf("an Owner came back after its release")
	}
	m.mu.Unlock()
	return m.link.Acquire(ctx, r)
}

func (m *remembering) Release(ctx context.Context, h driver.Hold) error {
	m.mu.Lock()
	m.released[h.Owner] = true
	m.mu.Unlock()
	return m.link.Release(ctx, h)
}

// An attempt without a majority releases its vote, and the next attempt has another Owner.
func TestReleasedOwnerDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(3)
		var members []driver.Backend
		var all []*remembering
		for i := range 3 {
			store := memlock.NewStore()
			m := &remembering{link: w.to(i, store.Connect()), t: t, released: map[string]bool{}}
			members, all = append(members, m), append(all, m)
		}
		b, err := quorum.New(members, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := distlock.New(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		other := driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}
		for _, m := range all[1:] {
			if _, err := m.Backend.Acquire(t.Context(), driver.Request{Hold: other, Fences: 1}); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan error, 1)
		go func() {
			lease, err := c.Mutex("x").Lock(t.Context())
			if err == nil {
				err = lease.Unlock(t.Context())
			}
			got <- err
		}()
		time.Sleep(10 * time.Second)
		if all[0].mu.Lock(); all[0].asked < 2 {
			t.Errorf("asked %d times", all[0].asked)
		}
		all[0].mu.Unlock()
		for _, m := range all[1:] {
			if err := m.Backend.Release(t.Context(), other); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
