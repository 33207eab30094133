package quorum_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// A split vote is resolved although a dead attempt has some votes: a living one wins at once,
// whichever member's vote is missing.
func TestSplitVoteWithTheDead(t *testing.T) {
	for _, split := range []string{"-ab", "a-b", "ab-", "-aabb", "aa-bb", "aabb-", "-abba", "-abcd", "ab-cd", "abcd-", "-aabc", "-abcc", "--abc", "a--bc", "abc--"} {
		t.Run(split, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, len(split))
				c.seize(t, split)
				won := c.race(t, split)
				if n := len(won); n != 1 {
					t.Errorf("%d won", n)
				}
			})
		})
	}
}

// seize lets a dead attempt hold at the members that are marked with a dash.
func (c *cluster) seize(t *testing.T, split string) {
	for i, who := range split {
		if who == '-' {
			if _, err := c.stores[i].Connect().Acquire(t.Context(), request(driver.Exclusive)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// race starts the named attempts at the same time, each nearest to the members that are marked
// with its name. It returns the attempts that were granted.
func (c *cluster) race(t *testing.T, split string) (won []driver.Request) {
	names := slices.Compact(slices.Sorted(slices.Values([]rune(split))))
	granted := make(chan driver.Request, len(names))
	var wg sync.WaitGroup
	for _, name := range names {
		if name == '-' {
			continue
		}
		b, w := c.process()
		for i, who := range split {
			if who != name {
				w.slow(i, 2*time.Millisecond)
			}
		}
		wg.Go(func() {
			r := request(driver.Exclusive)
			began := time.Now()
			switch _, err := b.Acquire(t.Context(), r); {
			case err == nil:
				granted <- r
			case !errors.Is(err, driver.ErrHeld):
				t.Errorf("%c: %v", name, err)
			}
			within(t, "an attempt", began, 100*time.Millisecond)
		})
	}
	wg.Wait()
	close(granted)
	for r := range granted {
		won = append(won, r)
	}
	return won
}

// scripted is a member whose calls fail with the given errors.
type scripted struct {
	*memlock.Backend
	name           string
	acquire, renew error
	releases       atomic.Int64
}

func (m *scripted) Caps() driver.Caps {
	c := m.Backend.Caps()
	c.Name, c.Queueing = m.name, driver.QueueNever
	return c
}

func (m *scripted) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if m.acquire != nil {
		return driver.Grant{}, m.acquire
	}
	r.Fences = 1 // fewer than asked for: all have to be raised
	return m.Backend.Acquire(ctx, r)
}

func (m *scripted) Renew(ctx context.Context, holds []driver.Hold) []error {
	if m.renew != nil {
		return []error{m.renew}
	}
	return m.Backend.Renew(ctx, holds)
}

func (m *scripted) Release(ctx context.Context, h driver.Hold) error {
	m.releases.Add(1)
	return m.Backend.Release(ctx, h)
}

// An attempt is unsent only if it is unsent at each member. A member without a request gets no
// release.
func TestUnsent(t *testing.T) {
	refused := driver.Unsent(errors.New("connection refused"))
	for what, c := range map[string]struct {
		acquire, renew [3]error
		want           bool
		releases       [3]int64
	}{
		"all":         {acquire: [3]error{refused, refused, refused}, want: true},
		"all but one": {acquire: [3]error{refused, errReset, refused}, releases: [3]int64{0, 1, 0}},
		"two of them": {acquire: [3]error{refused, nil, refused}, releases: [3]int64{0, 1, 0}},
		"the fences":  {renew: [3]error{refused, refused, refused}, releases: [3]int64{1, 1, 1}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var members []driver.Backend
				var all []*scripted
				for i, name := range []string{"a", "b", "c"} {
					m := &scripted{Backend: memlock.NewStore().Connect(), name: name, acquire: c.acquire[i], renew: c.renew[i]}
					all, members = append(all, m), append(members, m)
				}
				b, err := quorum.New(members, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				r := request(driver.Exclusive)
				r.Fences = 8
				_, err = b.Acquire(t.Context(), r)
				if err == nil || errors.Is(err, driver.ErrUnsent) != c.want {
					t.Errorf("Acquire: %v; does it match ErrUnsent? want %v", err, c.want)
				}
				synctest.Wait()
				for i, m := range all {
					if n := m.releases.Load(); n != c.releases[i] {
						t.Errorf("%d releases at member %s, want %d", n, m.name, c.releases[i])
					}
				}
			})
		})
	}
}
