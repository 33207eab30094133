package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutALockTheFleetIsLoggedOut(t *testing.T) {
	if _, served, err := simulate(t.Context(), storytest.New(t), refresh); err != nil || served != 0 {
		t.Errorf("%d hosts are served, %v; it should have gone wrong", served, err)
	}
}

func TestUnderALockOneRefreshesForAll(t *testing.T) {
	refreshes, served, err := simulate(t.Context(), storytest.New(t), refreshLocked)
	if err != nil || refreshes != 1 || served != hosts {
		t.Errorf("%d refreshes, %d of %d hosts are served, %v", refreshes, served, hosts, err)
	}
}
