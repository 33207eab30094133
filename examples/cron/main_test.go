package main

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"

	"github.com/distlock/distlock/examples/internal/storytest"
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

// Hosts with one schedule take turns in any order, and no two runs share a tick's hold.
func TestFollow(t *testing.T) {
	url, every := "sqlite:"+filepath.Join(t.TempDir(), "locks.db"), 300*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan uint64, 1)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			err := follow(ctx, url, every, func(ctx context.Context) error {
				ran <- distlock.Fence(ctx)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for first, n := <-ran, 0; n < 3; n++ {
		next := <-ran
		if next <= first {
			t.Errorf("fence %d after %d", next, first)
		}
		first = next
	}
	stop()
	go func() {
		all.Wait()
		close(ran)
	}()
	for range ran { // of a host that had begun
	}
}
