package served

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/server"
)

// A client with thousands of waiters has few connections: calls for which there is no room wait, and none of those that a holder
// needs waits for them.
func TestLongCrowdOfWaiters(t *testing.T) {
	const waiters, streams, mostConnections = 5000, 50, 400
	store := memlock.NewStore()
	s := must.Get(server.New(store.Connect(), server.Options{MaxStreams: streams}))(t)
	var open, most, accepted atomic.Int64
	h := s.HTTP()
	changed := h.ConnState
	h.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			accepted.Add(1)
			for n := open.Add(1); n > most.Load(); {
				most.CompareAndSwap(most.Load(), n)
			}
		case http.StateClosed:
			open.Add(-1)
		}
		changed(c, state)
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	go h.Serve(l)
	t.Cleanup(func() { h.Close() })

	direct := store.Connect()
	var lost atomic.Int64
	options := locktest.Patient()
	options.Observer = &distlock.Observer{Lost: func(distlock.Event) { lost.Add(1) }}
	c := client(t, "http://"+l.Addr().String()+patient, options)
	held := map[string]driver.Request{}
	var turns sync.WaitGroup
	for i := range waiters {
		r := request(fmt.Sprint("crowd ", i))
		r.TTL = time.Hour
		mustAcquire(t, direct, r)
		held[r.Name] = r
		turns.Go(func() {
			lease, err := c.Mutex(r.Name).Lock(t.Context())
			if err == nil {
				err = lease.Unlock(t.Context())
			}
			expect.OK(t, err, r.Name)
		})
	}
	eventually(t, "all wait", func() bool {
		for name := range held {
			if info := must.Get(direct.Inspect(t.Context(), name))(t); len(info.Waiters) == 0 {
				return false
			}
		}
		return true
	})
	for _, r := range held {
		expect.OK(t, direct.Release(t.Context(), r.Hold))
	}
	turns.Wait()
	expect.Equal(t, lost.Load(), 0, "lost")
	t.Logf("%d connections at once, %d in all", most.Load(), accepted.Load())
	if most.Load() > mostConnections {
		t.Errorf("%d connections at once; want at most %d", most.Load(), mostConnections)
	}
}
