package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// replyLossRun is a lock that owners in several processes use while the network loses requests and
// replies.
type replyLossRun struct {
	name    string
	modes   []driver.Mode
	readers atomic.Int32
	writers atomic.Int32
	fence   atomic.Uint64 // the greatest of a writer
	grants  atomic.Int32
	unclear atomic.Int32
}

// attempt makes an attempt for a new Owner, and releases it.
func (s *replyLossRun) attempt(ctx context.Context, b *Backend, rnd *rand.Rand) error {
	r := request(s.name, s.modes[rnd.IntN(len(s.modes))])
	r.TTL = 30 * time.Second // of what is left
	r.Queue, r.Fixed = rnd.IntN(2) == 0, rnd.IntN(4) == 0
	for range 1 + rnd.IntN(4) {
		g, err := s.call(ctx, rnd, func(ctx context.Context) (driver.Grant, error) { return b.Acquire(ctx, r) })
		if driver.Final(err) {
			return fmt.Errorf("acquire: %w", err)
		}
		if err == nil {
			if err := s.hold(ctx, b, r, g, rnd); err != nil {
				return err
			}
			break
		}
	}
	for {
		_, err := s.call(context.WithoutCancel(ctx), rnd, func(ctx context.Context) (driver.Grant, error) {
			return driver.Grant{}, b.Release(ctx, r.Hold)
		})
		if err == nil || errors.Is(err, driver.ErrLost) {
			return nil
		}
	}
}

// call makes a call, one of eight with a short timeout.
func (s *replyLossRun) call(ctx context.Context, rnd *rand.Rand, f func(context.Context) (driver.Grant, error)) (driver.Grant, error) {
	timeout := 10 * time.Second
	if rnd.IntN(8) == 0 {
		timeout = time.Duration(rnd.Int64N(int64(20 * time.Millisecond)))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	g, err := f(ctx)
	if err != nil && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
		s.unclear.Add(1)
	}
	return g, err
}

// hold checks for other holders, and acquires again or renews a few times.
func (s *replyLossRun) hold(ctx context.Context, b *Backend, r driver.Request, g driver.Grant, rnd *rand.Rand) error {
	s.grants.Add(1)
	mine := &s.writers
	if r.Mode == driver.Read {
		mine = &s.readers
	}
	mine.Add(1)
	defer mine.Add(-1)
	fresh := true
	for range 1 + rnd.IntN(3) {
		w, rd := s.writers.Load(), s.readers.Load()
		if w > 1 || w == 1 && rd > 0 {
			return fmt.Errorf("%d writers and %d readers hold", w, rd)
		}
		if fresh && r.Mode != driver.Read && s.fence.Swap(g.Fence) >= g.Fence {
			return fmt.Errorf("fence %d is not above the last", g.Fence)
		}
		var err error
		if fresh = rnd.IntN(2) == 0; fresh {
			g, err = s.call(ctx, rnd, func(ctx context.Context) (driver.Grant, error) { return b.Acquire(ctx, r) })
		} else {
			_, err = s.call(ctx, rnd, func(ctx context.Context) (driver.Grant, error) {
				return driver.Grant{}, b.Renew(ctx, []driver.Hold{r.Hold})[0]
			})
		}
		if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
			return fmt.Errorf("a holder acquired again, or renewed: %w", err)
		}
		if err != nil {
			return nil // outcome unknown
		}
	}
	return nil
}

// Lost requests and replies never make two holders, and leave nothing behind.
func TestLostRepliesNeverMakeTwoHolders(t *testing.T) {
	t.Parallel()
	lostReplies(t, 30)
}

func TestLongLostRepliesNeverMakeTwoHolders(t *testing.T) {
	t.Parallel()
	lostReplies(t, 500)
}

// lostReplies runs until each lock was granted so many times.
func lostReplies(t *testing.T, grants int32) {
	t.Helper()
	srv := testserver.SharedEtcd(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	admin := shared(t)
	var proxies []*faultproxy.Proxy
	var backends []*Backend
	for i := range 3 {
		p := faultproxy.New(t, srv.Addr())
		proxies = append(proxies, p)
		backends = append(backends, openAt(t, p.Addr(), nil))
		p.Storm(seed+uint64(i), 0.01, "")
	}
	scenes := []*replyLossRun{
		{name: request("", 0).Name, modes: []driver.Mode{driver.Exclusive}},
		{name: request("", 0).Name, modes: []driver.Mode{driver.Write, driver.Read, driver.Read}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 12 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				s := scenes[rnd.IntN(len(scenes))]
				expect.OK(t, s.attempt(ctx, backends[i%len(backends)], rnd), s.modes)
			}
		})
	}
	for _, s := range scenes {
		for last, since := int32(0), time.Now(); last < grants && !t.Failed(); time.Sleep(10 * time.Millisecond) {
			if now := s.grants.Load(); now > last {
				last, since = now, time.Now()
			}
			if time.Since(since) > locktest.Patience {
				t.Errorf("%v: no grant after %d for %v", s.modes, last, locktest.Patience)
			}
		}
	}
	cancel()
	for _, p := range proxies {
		p.Storm(0, 0, "")
	}
	wg.Wait()
	for _, s := range scenes {
		t.Logf("%v: %d grants, %d calls without an answer", s.modes, s.grants.Load(), s.unclear.Load())
		eventually(t, "nothing is left", func() bool { return len(storedKeys(t, admin, s.name)) == 0 })
	}
}

// An attempt without a usable lease fails with ErrUnsent when no server can be reached to grant one.
func TestRefusedConnectionsSendNothing(t *testing.T) {
	t.Parallel()
	proxies := proxiesTo(t, []string{testserver.SharedEtcd(t).Addr()})
	b := openThrough(t, proxies, nil)
	brief := func() driver.Request {
		r := request("", driver.Exclusive)
		r.TTL = 3 * time.Second
		return r
	}
	acquire(t, b, brief())
	proxies[0].Refuse()
	faultproxy.AwaitUnsent(t, b, brief)
	faultproxy.AwaitUnsentRelease(t, b, brief().Hold)
}

// forget makes the open connections silent, as a NAT or a firewall does that forgets them. New ones
// pass.
func forget(p *faultproxy.Proxy) {
	var old atomic.Bool
	old.Store(true)
	p.Sever(func(net.Conn) bool { return old.Load() })
	old.Store(false)
}

// A holder whose connections are silent renews over new ones. This client has no keep-alive of its own,
// so it never notices.
func TestRenewalOnForgottenConnections(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string][]string{
		"server":  {testserver.SharedEtcd(t).Addr()},
		"cluster": testserver.SharedEtcdCluster(t).Addrs(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxies := proxiesTo(t, addrs)
			b := openThrough(t, proxies, nil)
			r := request("", driver.Exclusive)
			acquire(t, b, r)
			for range 2 {
				for _, p := range proxies {
					forget(p)
				}
				eventually(t, "the hold is renewed", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					return b.Renew(ctx, []driver.Hold{r.Hold})[0] == nil
				})
			}
			for _, p := range proxies {
				p.Pass() // for Close
			}
		})
	}
}
