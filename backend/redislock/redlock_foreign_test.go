package redislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

// Other data at a minority of the members costs its votes, and at a majority it is an error.
func TestRedlockAmongOtherData(t *testing.T) {
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{})
	set := func(n int, args ...string) {
		t.Helper()
		for _, m := range ms[:n] {
			if _, err := m.Do(args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(2, "SET", "minority", "an order")
	acquire(t, b, request("minority", time.Minute))
	set(3, "SET", "majority", "an order")
	if _, err := b.Acquire(t.Context(), request("majority", time.Minute)); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "?prefix=") {
		t.Errorf("other data at three of five: %v, want ErrInvalid", err)
	}
	set(5, "SET", "token", "theirs", "PX", "60000")
	info, err := b.Inspect(t.Context(), "token")
	if err != nil || len(info.Holders) != 1 || !info.Holders[0].Foreign {
		t.Errorf("another library's lock: %+v, %v", info, err)
	}
}
