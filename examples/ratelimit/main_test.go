package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutPermitsTheLimitIsPassed(t *testing.T) {
	if most, err := tell(t.Context(), storytest.New(t), call); err != nil || most <= limit {
		t.Errorf("%d calls at once, %v; it was to go wrong", most, err)
	}
}

func TestWithPermitsItIsNeverPassed(t *testing.T) {
	if most, err := tell(t.Context(), storytest.New(t), callWithPermit); err != nil || most > limit {
		t.Errorf("%d calls at once, %v", most, err)
	}
}
