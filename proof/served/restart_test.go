package served

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// counted counts the renewals of each hold that were answered with success.
type counted struct {
	driver.Backend
	renewals *sync.Map // of *atomic.Int32, by Owner
}

func (c counted) Renew(ctx context.Context, holds []driver.Hold) []error {
	errs := c.Backend.Renew(ctx, holds)
	for i, h := range holds {
		if errs[i] == nil {
			n, _ := c.renewals.LoadOrStore(h.Owner, &atomic.Int32{})
			n.(*atomic.Int32).Add(1)
		}
	}
	return errs
}

func (c counted) Watch(ctx context.Context, r driver.Request) (driver.Watch, error) {
	return c.Backend.(driver.Watcher).Watch(ctx, r)
}

// of returns how often a hold was renewed.
func (c counted) of(owner string) int32 {
	if n, ok := c.renewals.Load(owner); ok {
		return n.(*atomic.Int32).Load()
	}
	return 0
}

func hosts(servers ...*process) string {
	var all []string
	for _, p := range servers {
		all = append(all, p.addr)
	}
	return "http://" + strings.Join(all, ",") + patient
}

// client makes a client, which ends with the test.
func client(t testing.TB, url string, o *distlock.Options) *distlock.Client {
	t.Helper()
	c := must.Get(distlock.New(open(t, url), o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// Servers are killed and come back while locks are held and fought for. No held lock is lost, there is one holder
// at a time, and fences increase.
func TestServersAreKilled(t *testing.T) {
	t.Parallel()
	address := testserver.SharedRedis(t).URL()
	renewed := counted{renewals: &sync.Map{}}
	connect := func() driver.Backend { return counted{open(t, address), renewed.renewals} }
	servers := []*process{start(t, connect), start(t, connect)}
	prefix := "test " + driver.NewOwner()
	var lost atomic.Int32
	options := &distlock.Options{
		TTL:      45 * time.Second,
		Observer: &distlock.Observer{Lost: func(distlock.Event) { lost.Add(1) }},
	}
	clients := []*distlock.Client{client(t, hosts(servers...), options), client(t, hosts(servers[1], servers[0]), options)}
	var held []*distlock.Lease
	for i := range 20 {
		lease := must.Get(clients[i%2].Mutex(fmt.Sprint(prefix, " held ", i)).Lock(t.Context()))(t)
		held = append(held, lease)
	}

	check := exclusion.New()
	ctx, cancel := context.WithCancel(t.Context())
	var turns atomic.Int32
	var wg sync.WaitGroup
	for i, c := range clients {
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if check.Hold(ctx, fmt.Sprint("client ", i), c.Mutex(prefix+" fought for"), time.Millisecond) == nil {
						turns.Add(1)
					}
				}
			})
		}
	}
	more := func() {
		until := turns.Load() + 50
		eventually(t, "turns go on", func() bool { return turns.Load() >= until })
	}
	more()
	for _, p := range []*process{servers[0], servers[1], servers[0]} {
		p.kill()
		more()
		p.restart()
		more()
	}
	servers[1].kill()
	before := map[string]int32{}
	for _, l := range held {
		before[l.Owner()] = renewed.of(l.Owner())
	}
	eventually(t, "all are renewed at the other server", func() bool {
		for owner, n := range before {
			if renewed.of(owner) == n {
				return false
			}
		}
		return true
	})
	cancel()
	wg.Wait()
	for _, l := range held {
		if err := l.Unlock(t.Context()); err != nil && !errors.Is(err, distlock.ErrUnavailable) {
			t.Errorf("%s: %v", l.Name(), err)
		}
	}
	expect.Equal(t, lost.Load(), 0, "locks were lost")
	check.Judge(t, int(turns.Load()))
	t.Logf("%d turns", turns.Load())
}

// A server that drains sends new work to the next one, and still renews and releases.
func TestDraining(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	connect := func() driver.Backend { return store.Connect() }
	one, two := start(t, connect), start(t, connect)
	b := open(t, hosts(one, two))
	r := request("held")
	mustAcquire(t, b, r)
	waiter := request("held")
	watch := must.Get(b.(driver.Watcher).Watch(t.Context(), waiter))(t)
	defer watch.Close()
	one.drain()
	signalled(t, watch, "the stream has ended")
	mustAcquire(t, b, request("new"))
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "renew")
	only := open(t, one.url())
	if _, err := only.Acquire(t.Context(), request("other")); !errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
		t.Errorf("acquire at a server that drains: %v", err)
	}
	expect.OK(t, only.Release(t.Context(), r.Hold), "release at a server that drains")
	signalled(t, watch, "the release")
}

// Watches and news come back with the server.
func TestStreamsComeBack(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	p := start(t, func() driver.Backend { return store.Connect() })
	b, direct := open(t, p.url()), store.Connect()
	held := request("held")
	mustAcquire(t, direct, held)
	watch := must.Get(b.(driver.Watcher).Watch(t.Context(), request("held")))(t)
	defer watch.Close()
	asked := make(chan struct{}, 1)
	r := request("revocable")
	r.OnRevoke = func() { asked <- struct{}{} }
	mustAcquire(t, b, r)

	p.kill()
	if err := direct.Release(t.Context(), held.Hold); err != nil { // no waiter is notified
		t.Fatal(err)
	}
	p.restart()
	signalled(t, watch, "the server is back")
	mustAcquire(t, direct, held)
	must.OK(t, direct.Release(t.Context(), held.Hold))
	signalled(t, watch, "a release after the server is back")

	acquired := false
	eventually(t, "the holder acquires again", func() bool {
		_, err := b.Acquire(t.Context(), r)
		acquired = err == nil
		return acquired
	})
	must.OK(t, direct.Revoke(t.Context(), r.Hold))
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("the holder is not asked")
	}
}

// Another backend behind the same address is refused, until the old one is back.
func TestAnotherBackend(t *testing.T) {
	t.Parallel()
	stores := []*memlock.Store{memlock.NewStore(), memlock.NewStore()}
	var now atomic.Int32
	p := start(t, func() driver.Backend { return stores[now.Load()].Connect() })
	b := open(t, p.url())
	r := request("held")
	mustAcquire(t, b, r)
	p.kill()
	now.Store(1)
	p.restart()
	eventually(t, "the other backend is noticed", func() bool {
		_, err := b.Acquire(t.Context(), request("held"))
		if err == nil || errors.Is(err, driver.ErrHeld) {
			t.Fatalf("a server with another backend: %v", err)
		}
		return errors.Is(err, driver.ErrUnsent) && strings.Contains(err.Error(), "when it was opened")
	})
	if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
		t.Errorf("renew: %v", err)
	}
	expect.OK(t, stores[1].Connect().List(t.Context(), "", func(name string) bool { t.Errorf("%q is in the other store", name); return true }))
	p.kill()
	now.Store(0)
	p.restart()
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "with the old backend")
}

// A closed client leaves nothing behind, also if its server was silent or gone.
func TestNothingIsLeft(t *testing.T) {
	store := memlock.NewStore()
	p := start(t, func() driver.Backend { return store.Connect() })
	before := testkit.Goroutines()
	for _, killed := range []bool{false, true} {
		for range 20 {
			b := open(t, p.url())
			r := request("held by " + driver.NewOwner())
			r.OnRevoke = func() {}
			mustAcquire(t, b, r)
			must.Get(b.(driver.Watcher).Watch(t.Context(), request("held")))(t)
			if killed {
				p.kill()
				b.Renew(t.Context(), []driver.Hold{r.Hold})
			}
			b.Close()
			if killed {
				p.restart()
			}
		}
		eventually(t, "all goroutines end", func() bool { return testkit.Goroutines() <= before+2 })
	}
}
