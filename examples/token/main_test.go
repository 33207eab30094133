package main

import (
	"testing"

	"github.com/distlock/distlock/examples/internal/storytest"
)

func TestWithoutALockTheFleetIsLoggedOut(t *testing.T) {
	if _, served, err := tell(t.Context(), storytest.New(t), refresh); err != nil || served != 0 {
		t.Errorf("%d hosts are served, %v; it was to go wrong", served, err)
	}
}

func TestUnderALockOneRefreshesForAll(t *testing.T) {
	refreshes, served, err := tell(t.Context(), storytest.New(t), refreshLocked)
	if err != nil || refreshes != 1 || served != hosts {
		t.Errorf("%d refreshes, %d of %d hosts are served, %v", refreshes, served, hosts, err)
	}
}
