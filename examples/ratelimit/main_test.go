package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutPermitsTheLimitIsPassed(t *testing.T) {
	if most, err := simulate(t.Context(), storytest.New(t), call); err != nil || most <= limit {
		t.Errorf("%d calls at once, %v; it should have gone wrong", most, err)
	}
}

func TestWithPermitsItIsNeverPassed(t *testing.T) {
	if most, err := simulate(t.Context(), storytest.New(t), callWithPermit); err != nil || most > limit {
		t.Errorf("%d calls at once, %v", most, err)
	}
}
