package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/distlock/distlock/examples/internal/exampletest"
	"github.com/distlock/distlock/examples/internal/storytest"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestWithoutALockTicksRunMoreThanOnce(t *testing.T) {
	j, err := simulate(t.Context(), storytest.New(t), &journal{}, run)
	if err != nil || len(j.ended) <= ticks {
		t.Errorf("runs %v, %v; it should have gone wrong", j.ended, err)
	}
}

func TestUnderALockEachTickRunsOnceAlthoughAHostDies(t *testing.T) {
	j, err := simulate(t.Context(), storytest.New(t), &journal{fatal: fatal}, runLocked)
	if err != nil || !slices.Equal(j.ended, []int{1, 2, 3, 4, 5}) {
		t.Errorf("runs %v, %v", j.ended, err)
	}
	if !slices.Equal(j.began, []int{1, 2, 3, 3, 4, 5}) {
		t.Errorf("began %v; only the interrupted run should have started again", j.began)
	}
}

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Three hosts run ticks in turn, each under a greater fence.
func TestTicksRunInTurn(t *testing.T) {
	exampletest.OnStores(t, func(t *testing.T, url string) {
		var hosts []*exampletest.Process
		runs := make(chan string)
		for range 3 {
			p := exampletest.Start(t, "DISTLOCK_URL="+url, "EVERY=2s")
			hosts = append(hosts, p)
			go func() {
				for line := range p.Lines {
					runs <- line
				}
			}()
		}
		var last uint64
		for n := 0; n < 3; {
			var fence uint64
			line := <-runs
			if _, err := fmt.Sscanf(line, "making the report, under fence %d", &fence); err != nil {
				t.Log(line) // a tick that a busy machine has missed
				continue
			}
			if fence <= last {
				t.Errorf("fence %d after %d", fence, last)
			}
			n, last = n+1, fence
		}
		for _, p := range hosts {
			must.OK(t, p.Process.Kill())
		}
	})
}
