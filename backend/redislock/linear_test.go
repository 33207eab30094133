package redislock

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// linear wants a call to take the server, in processor time, at most eight times as long for four times as much: a quadratic one takes 16 times. The
// least of several counts.
func linear(t testing.TB, srv *testserver.RedisServer, what string, size int, call func(size int)) {
	t.Helper()
	least := func(size int) time.Duration {
		best := time.Hour
		for range 3 {
			before := serverCPU(t, srv)
			call(size)
			best = min(best, serverCPU(t, srv)-before)
		}
		return best
	}
	small, large := least(size), least(4*size)
	t.Logf("%s: %v, four times as much %v", what, small, large)
	if large > 8*small+5*time.Millisecond {
		t.Errorf("%s: %v, four times as much takes %v", what, small, large)
	}
}

// While a script runs the server does nothing else: its time is linear in the metadata, in the name, and for all waiters that leave
// in their number.
func TestScriptsAreLinear(t *testing.T) {
	srv := testserver.Redis(t)
	for _, k := range []keeping{keepings[0], keepings[2]} {
		b := k.open(t, srv.URL())
		for _, mode := range allModes {
			for what, r := range map[string]func(size int) driver.Request{
				"metadata": func(size int) driver.Request {
					r := request("", mode)
					r.Meta = map[string]string{"1": strings.Repeat("1", size)}
					return r
				},
				"name": func(size int) driver.Request { return request(driver.NewOwner()+strings.Repeat("1", size), mode) },
			} {
				linear(t, srv, fmt.Sprintf("%v %v %s", k, mode, what), 10_000, func(size int) {
					r := r(size)
					r.Limit = 1
					r.Fence = acquire(t, b, r).Fence
					other := request(r.Name, mode)
					other.Limit, other.Queue = 1, b.caps.QueueingOf(mode) != driver.QueueNever
					_, _ = b.Acquire(t.Context(), other)
					acquire(t, b, r)
					must.Get(b.Inspect(t.Context(), r.Name))(t)
					must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
					if mode == driver.Write {
						r.Mode = driver.Read
						acquire(t, b, r)
					}
					release(t, b, r)
				})
			}
			if b.caps.QueueingOf(mode) == driver.QueueNever {
				continue
			}
			linear(t, srv, fmt.Sprintf("%v %v waiters that leave", k, mode), 250, func(size int) {
				r := request("", driver.Exclusive)
				acquire(t, b, r)
				waiters := places(t, b, r.Name, slices.Repeat([]driver.Mode{mode}, size)...)
				for _, w := range waiters {
					release(t, b, w)
				}
			})
		}
	}
}
