package sqltest

import (
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// A hold that was renewed with a longer TTL lives for that TTL, even on a connection that had an
// earlier hold.
func TestRenewForLongerOnAUsedConnection(t *testing.T) {
	t.Parallel()
	eachOnConnections(t, func(t *testing.T, s strategy) {
		c := newScene(t, s, s.kind.shared(t))
		user := c.user()
		b := c.backend(user)
		brief, long := exclusive(lockName), exclusive(lockName)
		brief.TTL = life
		long.Owner, long.TTL = brief.Owner, time.Hour
		for range 2 {
			takeForLonger(t, b, brief, long)
			must.OK(t, b.Release(t.Context(), brief.Hold))
		}
		takeForLonger(t, b, brief, long)
		time.Sleep(life + life/2)
		expect.Be(t, expect.Err(c.backend(c.user()).Acquire(t.Context(), exclusive(lockName))), driver.ErrHeld, "another's attempt")
	})
}

// takeForLonger takes a lock and renews it with a longer TTL. It retries if the machine was too slow.
func takeForLonger(t *testing.T, b driver.Backend, brief, long driver.Request) {
	t.Helper()
	for {
		acquire(t, b, brief)
		err := b.Renew(t.Context(), []driver.Hold{long.Hold})[0]
		if err == nil {
			return
		}
		must.Be(t, err, driver.ErrLost)
	}
}
