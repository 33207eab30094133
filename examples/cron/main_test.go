package main

import (
	"slices"
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutALockTicksRunMoreThanOnce(t *testing.T) {
	j, err := tell(t.Context(), storytest.New(t), &journal{}, run)
	if err != nil || len(j.ended) <= ticks {
		t.Errorf("runs %v, %v; it was to go wrong", j.ended, err)
	}
}

func TestUnderALockEachTickRunsOnceThoughAHostDies(t *testing.T) {
	j, err := tell(t.Context(), storytest.New(t), &journal{fatal: fatal}, runLocked)
	if err != nil || !slices.Equal(j.ended, []int{1, 2, 3, 4, 5}) {
		t.Errorf("runs %v, %v", j.ended, err)
	}
	if !slices.Equal(j.began, []int{1, 2, 3, 3, 4, 5}) {
		t.Errorf("began %v; the one that died was to be begun anew, and no other", j.began)
	}
}
