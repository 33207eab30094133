//go:build linux

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// PostgreSQL ends idle sessions by its wall clock. If that jumps forward between the last renewal and the alarm that an
// earlier renewal set, the alarm finds the TTL over. The holder loses the lock as if its connection were cut, and is told
// so.
func TestLongClockAheadEndsSessions(t *testing.T) {
	clock := preload(t, "clock", "DISTLOCK_CHAOS_CLOCK")
	srv := testserver.Postgres(t, testserver.PostgresOptions{})
	u := must.Get(url.Parse(srv.Database(t)))(t)
	q := u.Query()
	q.Set("create", "true")
	q.Set("strategy", "advisory")
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	locks := must.Get(distlock.Open(ctx, u.String(), &distlock.Options{TTL: 2 * time.Second}))(t)
	defer locks.Close()
	held := must.Get(locks.Mutex(hot).Lock(ctx))(t)
	for held.Context().Err() == nil && ctx.Err() == nil {
		clock.set(t, clock.value+time.Minute.Microseconds())
		// The next renewal sets an alarm for a second later, when the server would look whether its client lives. The
		// one after it comes before that alarm. A jump just then ends the session.
		time.Sleep(700*time.Millisecond + rand.N(900*time.Millisecond))
	}
	expect.Be(t, context.Cause(held.Context()), distlock.ErrLost, "the lease ended with")
	next := must.Get(locks.Mutex(hot).Lock(ctx))(t)
	if next.Fence() <= held.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), held.Fence())
	}
	if err := next.Unlock(ctx); err != nil && !errors.Is(err, distlock.ErrLost) {
		t.Error(err)
	}
}
