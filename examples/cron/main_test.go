package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/story"
	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutALockTicksRunMoreThanOnce(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		j, err := simulate(t.Context(), s, &journal{}, run)
		if err != nil || len(j.ended) <= ticks {
			t.Errorf("runs %v, %v; it should have gone wrong", j.ended, err)
		}
	})
}

func TestUnderALockEachTickRunsOnceAlthoughAHostDies(t *testing.T) {
	storytest.Run(t, func(t *testing.T, s *story.Story) {
		j, err := simulate(t.Context(), s, &journal{fatal: fatal}, runLocked)
		if err != nil || !slices.Equal(j.ended, []int{1, 2, 3, 4, 5}) {
			t.Errorf("runs %v, %v", j.ended, err)
		}
		if !slices.Equal(j.began, []int{1, 2, 3, 3, 4, 5}) {
			t.Errorf("began %v; only the interrupted run should have started again", j.began)
		}
	})
}

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Three hosts run ticks, each under a fence of its own, which is greater than those before on that host. What different hosts
// log is read in any order.
func TestTicksRunUnderGreaterFences(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		type run struct {
			host int
			line string
		}
		runs := make(chan run, 1000)
		for host := range 3 {
			p := exampletest.Start(t, "DISTLOCK_URL="+url, "EVERY=2s")
			go func() {
				for line := range p.Lines {
					runs <- run{host, line}
				}
				runs <- run{host, "it has ended"}
			}()
		}
		seen, last := map[uint64]bool{}, [3]uint64{}
		for len(seen) < 3 {
			r := <-runs
			var fence uint64
			if _, err := fmt.Sscanf(r.line, "making the report, under fence %d", &fence); err != nil {
				t.Log(r.line) // a tick that a busy machine has missed
				continue
			}
			if seen[fence] || fence <= last[r.host] {
				t.Errorf("host %d: fence %d after %d, or twice", r.host, fence, last[r.host])
			}
			seen[fence], last[r.host] = true, fence
		}
	})
}

func TestItFailsWithoutAServer(t *testing.T) {
	exampletest.Fails(t, "connection refused", "DISTLOCK_URL=redis://127.0.0.1:1")
}

func TestItFailsWithoutASchedule(t *testing.T) {
	exampletest.Fails(t, "invalid duration", "DISTLOCK_URL=mem:", "EVERY=often")
}
