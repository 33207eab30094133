package main

import (
	"slices"
	"testing"

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
