package served

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Calls that are given up before they arrive leave nothing: no lock that nobody has, and no place in a queue. The servers are
// away by different times, so that a release which went to another server than its attempt would pass it.
func TestLongGivenUpCalls(t *testing.T) {
	for what, c := range map[string]struct {
		delays []time.Duration // one for each server
		drains bool            // the first server drains again and again
	}{
		"one server":               {delays: []time.Duration{15 * time.Millisecond}},
		"two servers":              {delays: []time.Duration{40 * time.Millisecond, 15 * time.Millisecond}},
		"two servers, near first":  {delays: []time.Duration{15 * time.Millisecond, 40 * time.Millisecond}},
		"two servers, one drained": {delays: []time.Duration{40 * time.Millisecond, 15 * time.Millisecond}, drains: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore()
			direct := store.Connect()
			var servers []*process
			var addrs []string
			for _, d := range c.delays {
				s := start(t, func() driver.Backend { return store.Connect() })
				p := faultproxy.New(t, s.addr)
				p.Delay(d)
				servers, addrs = append(servers, s), append(addrs, p.Addr())
			}
			clients := []*distlock.Client{client(t, "http://"+strings.Join(addrs, ",")+patient, nil), client(t, "http://"+strings.Join(addrs, ",")+patient, nil)}
			ctx, cancel := context.WithCancel(t.Context())
			var drains sync.WaitGroup
			if c.drains {
				drains.Go(func() { drainAgainAndAgain(ctx, servers[0]) })
			}
			const locks = 2000
			holders := map[string]driver.Request{} // of every other lock
			names := make(chan string, locks)
			for i := range locks {
				r := request(fmt.Sprint("given up ", i))
				r.TTL = time.Hour
				if i%2 == 0 {
					mustAcquire(t, direct, r)
				}
				holders[r.Name] = r
				names <- r.Name
			}
			close(names)
			var callers sync.WaitGroup
			for i := range 40 {
				callers.Go(func() {
					for name := range names {
						giveUp(ctx, t, clients[i%2], name)
					}
				})
			}
			callers.Wait()
			cancel()
			drains.Wait()
			for name, r := range holders {
				eventually(t, name+" is not waited for, and held by nobody else", func() bool {
					info := must.Get(direct.Inspect(t.Context(), name))(t)
					return len(info.Waiters) == 0 && (len(info.Holders) == 0 || info.Holders[0].Owner == r.Owner)
				})
			}
		})
	}
}

// giveUp waits for a lock for a time in which hardly a call is answered.
func giveUp(ctx context.Context, t *testing.T, c *distlock.Client, name string) {
	ctx, cancel := context.WithTimeout(ctx, rand.N(10*time.Millisecond))
	defer cancel()
	if l, err := c.Mutex(name, distlock.WithTTL(time.Hour)).Lock(ctx); err == nil {
		expect.OK(t, l.Unlock(context.WithoutCancel(ctx)), name)
	}
}

// drainAgainAndAgain ends a server as distlock serve does, and starts it again.
func drainAgainAndAgain(ctx context.Context, p *process) {
	for ctx.Err() == nil {
		p.drain()
		_ = p.http.Shutdown(p.t.Context())
		p.restart()
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
