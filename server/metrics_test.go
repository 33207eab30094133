package server

import (
	"testing"

	"github.com/distlock/distlock/backend/memlock"
)

// The metrics count waits and holds by mode and by their end, and name no lock.
func TestMetricsOfHolds(t *testing.T) {
	t.Parallel()
	r := start(t, memlock.New(), Options{})
	r.wants(200, "", "POST", "/v1/acquire", hold("x", ownerA))
	answer := r.background("POST", "/v1/acquire", waiting("x", ownerB, 60_000))
	r.await("x", 1)
	r.wants(204, "", "POST", "/v1/release", hold("x", ownerA))
	answer(200, "")
	for _, line := range []string{
		`distlock_wait_duration_seconds_count{mode="exclusive",outcome="granted"} 2`,
		`distlock_hold_duration_seconds_count{mode="exclusive",outcome="released"} 1`,
	} {
		r.wants(200, line, "GET", "/metrics", "")
	}
}
