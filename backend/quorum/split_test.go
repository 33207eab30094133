package quorum_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
