package quorum_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
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
		b := must.Get(quorum.New(members, nil))(t)
		c := must.Get(distlock.New(b, nil))(t)
		defer c.Close()
		other := driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}
		for _, m := range all[1:] {
			must.Get(m.Backend.Acquire(t.Context(), driver.Request{Hold: other, Fences: 1}))(t)
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
			must.OK(t, m.Backend.Release(t.Context(), other))
		}
		expect.OK(t, <-got)
	})
}

// spender is a member that refuses, and releases the Owners that it refused, which may arrive late.
type spender struct {
	*odd
	mu    sync.Mutex
	spent map[string]int // attempts, by Owner
}

func (m *spender) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spent == nil {
		m.spent = map[string]int{}
	}
	m.spent[r.Owner]++
	return driver.Grant{}, driver.Spent(&driver.HeldError{Holders: []driver.Holder{{Owner: driver.NewOwner()}}})
}

// An Owner that a member has released is not requested there again, and the caller learns that.
func TestSpentAtAMember(t *testing.T) {
	for _, spenders := range []int{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			var all []driver.Backend
			var seen []*spender
			for i := range 3 {
				o := &odd{Backend: memlock.New()}
				if all = append(all, o); i < spenders {
					s := &spender{odd: o}
					seen, all[i] = append(seen, s), s
				}
			}
			b := must.Get(quorum.New(all, nil))(t)
			defer b.Close()
			r := request(driver.Exclusive)
			_, err := b.Acquire(t.Context(), r)
			if (err == nil) != (spenders == 1) || err != nil && !errors.Is(err, driver.ErrSpent) {
				t.Errorf("%d members release: %v", spenders, err)
			}
			synctest.Wait() // a decision does not wait for the third
			for _, s := range seen {
				if n := s.spent[r.Owner]; n != 1 {
					t.Errorf("%d members release: %d attempts with one Owner at one of them", spenders, n)
				}
			}
		})
	}
}

// A member that forgets a vote while the attempt waits for another one may have granted a successor: the attempt
// does not return an older grant.
func TestAVoteThatWasForgotten(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *cluster, b *quorum.Backend, w *wire) {
		other, ow := c.process()
		w.slow(1, 85*time.Millisecond)
		w.kill(2)
		ow.kill(1)
		var wg sync.WaitGroup
		wg.Go(func() {
			if g, err := b.Acquire(t.Context(), request(driver.Exclusive)); err == nil {
				t.Errorf("granted with fence %d beside the successor", g.Fence)
			}
		})
		time.Sleep(50 * time.Millisecond)
		c.stores[0] = memlock.NewStore()
		w.replace(0, c.stores[0])
		ow.replace(0, c.stores[0])
		take(t, other, request(driver.Exclusive))
		wg.Wait()
	})
}

// sessionMember is a member whose holds last as long as its session. It refuses to release at first.
type sessionMember struct {
	*told
	refuses  atomic.Bool
	released atomic.Bool
}

func (m *sessionMember) Caps() driver.Caps {
	c := m.told.Caps()
	c.Session = true
	return c
}

func (m *sessionMember) Release(ctx context.Context, h driver.Hold) error {
	if m.refuses.Load() {
		return errReset
	}
	m.released.Store(true)
	return m.told.Release(ctx, h)
}

// A member that keeps a hold as long as its session lives is asked to release it for as long.
func TestReleaseAtASessionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, backends, _ := tellers("1", "2", "3")
		m := &sessionMember{told: all[2]}
		m.refuses.Store(true)
		backends[2] = m
		b := must.Get(quorum.New(backends, nil))(t)
		defer b.Close()
		r := request(driver.Exclusive)
		take(t, b, r)
		expect.OK(t, b.Release(t.Context(), r.Hold))
		time.Sleep(10 * r.TTL)
		m.refuses.Store(false)
		time.Sleep(10 * r.TTL)
		if !m.released.Load() {
			t.Error("the member has the hold for ever")
		}
	})
}
