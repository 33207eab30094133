package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/zk"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	var proxies faultproxy.Networks
	drivertest.Run(t, drivertest.Harness{
		KindsApart: true, // as Curator's recipes do

		TTL: 2 * time.Second, // on a busy machine a client must not consider the network broken
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b, err := Open(ctx, patiently("zk://"+p.Addr()))
			if err != nil {
				return nil, err
			}
			b.caps.Name = srv.URL()
			proxies.Add(b, p)
			return b, nil
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
	})
}

// In an ensemble each connection uses another server, which may lag behind the others.
func TestLongConformanceOfAnEnsemble(t *testing.T) {
	t.Parallel()
	g := testserver.SharedZooKeeperCluster(t)
	drivertest.Run(t, drivertest.Harness{
		KindsApart: true,

		TTL:  2 * time.Second,
		Open: func(ctx context.Context) (driver.Backend, error) { return driver.Open(ctx, patiently(g.URL())) },
	})
}

// What one server has answered, the others say as well from that moment on: a lock that was released is free for a try, and a
// lock that was granted has a holder.
func TestLongServersAgree(t *testing.T) {
	t.Parallel()
	var backends []*Backend
	for _, addr := range testserver.SharedZooKeeperCluster(t).Addrs() {
		backends = append(backends, open(t, "zk://"+addr))
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			a, b := backends[i%3], backends[(i+1+i/3%2)%3]
			r := request("", driver.Exclusive)
			for range 500 {
				if _, err := a.Acquire(t.Context(), r); err != nil {
					t.Errorf("a free lock, or one that was released at another server: %v", err)
					return
				}
				if info, err := b.Inspect(t.Context(), r.Name); err != nil || len(info.Holders) != 1 {
					t.Errorf("after a grant at another server: %+v, %v", info, err)
				}
				if err := a.Release(t.Context(), r.Hold); err != nil {
					t.Error(err)
				}
				a, b = b, a
				r = request(r.Name, driver.Exclusive)
				r.Queue = false
			}
		})
	}
	wg.Wait()
}

// Requests, answers and connections are lost all the time. There is one holder at a time, fences
// increase, and no nodes are left behind.
func TestStorm(t *testing.T) {
	t.Parallel()
	storms(t, 40)
}

func TestLongStorm(t *testing.T) {
	t.Parallel()
	storms(t, 1000)
}

// storms runs, for each mode, until there were so many grants and half as many unknown outcomes.
func storms(t *testing.T, grants int32) {
	t.Helper()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Counted} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			srv := testserver.SharedZooKeeper(t)
			s := &storm{t: t, name: "test " + driver.NewOwner(), mode: mode, wanted: grants}
			var wg sync.WaitGroup
			var proxies []*faultproxy.Proxy
			for seed := range 2 {
				p := faultproxy.New(t, srv.Addr())
				b := open(t, "zk://"+p.Addr())
				p.Storm(uint64(seed), 0.1, "")
				proxies = append(proxies, p)
				for i := range 4 {
					wg.Go(func() { s.work(b, i) })
				}
			}
			for !s.enough() && !t.Failed() {
				time.Sleep(time.Millisecond)
			}
			for _, p := range proxies {
				p.Storm(0, 0, "")
			}
			wg.Wait()
			t.Logf("%d grants, %d unknown outcomes", s.grants.Load(), s.unknown.Load())
			op := admin(t)
			for _, dir := range []string{"", "/" + leasesNode, "/" + locksNode} {
				path := pathOf(s.name) + dir
				eventually(t, "nothing is left", func() bool { return len(nodes(t, op, path)) == 0 })
			}
		})
	}
}

// storm is work under a lock on a bad network.
type storm struct {
	t               *testing.T
	name            string
	mode            driver.Mode
	wanted          int32 // grants
	inside          atomic.Int32
	last            atomic.Uint64
	grants, unknown atomic.Int32
}

func (s *storm) enough() bool {
	return s.grants.Load() >= s.wanted && s.unknown.Load() >= s.wanted/2
}

// work takes turns as the core would: after an unknown outcome it retries for the same Owner, or
// gives up and releases it until there is an answer.
func (s *storm) work(b *Backend, i int) {
	for turn := 0; !s.enough() && !s.t.Failed(); turn++ {
		r := request(s.name, s.mode)
		r.Limit, r.Queue = 1, (turn+i)%3 > 0
		g, err := s.take(b, r)
		if err == nil {
			s.hold(g)
		}
		s.release(b, r)
	}
}

// take tries a few times.
func (s *storm) take(b *Backend, r driver.Request) (g driver.Grant, err error) {
	for range 5 {
		if g, err = s.try(b, r); err == nil {
			return g, nil
		}
		if !errors.Is(err, driver.ErrHeld) {
			s.unknown.Add(1)
		}
		if driver.Final(err) || errors.Is(err, driver.ErrLost) {
			s.t.Errorf("acquire: %v", err)
		}
	}
	return g, err
}

func (s *storm) try(b *Backend, r driver.Request) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
	defer cancel()
	return b.Acquire(ctx, r)
}

func (s *storm) hold(g driver.Grant) {
	s.grants.Add(1)
	if n := s.inside.Add(1); n != 1 {
		s.t.Errorf("%d holders at once", n)
	}
	if before := s.last.Swap(g.Fence); before >= g.Fence {
		s.t.Errorf("fence %d after %d", g.Fence, before)
	}
	time.Sleep(time.Millisecond)
	s.inside.Add(-1)
}

func (s *storm) release(b *Backend, r driver.Request) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(s.t.Context(), 500*time.Millisecond)
		err := b.Release(ctx, r.Hold)
		cancel()
		if err == nil || errors.Is(err, driver.ErrLost) {
			return
		}
		s.unknown.Add(1)
	}
	s.t.Error("no answer to a release")
}

// BenchmarkPair acquires and releases uncontended locks, and compares that with the least possible:
// creating and deleting a node.
func BenchmarkPair(b *testing.B) {
	srv := testserver.SharedZooKeeper(b)
	locks := open(b, srv.URL())
	bare := dial(b, srv.Addr(), patience)
	for _, width := range []int{1, 16, 128} {
		b.Run(fmt.Sprint("bare/", width), func(b *testing.B) {
			sideBySide(b, width, func(i int) error {
				path, _, err := bare.Create(b.Context(), fmt.Sprintf("/bench-%d-", i), nil, zk.EphemeralSequential)
				if err == nil {
					err = bare.Delete(b.Context(), path, -1)
				}
				return err
			})
		})
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Counted} {
			for _, queue := range []bool{true, false} {
				b.Run(fmt.Sprintf("%v/queue=%v/%d", mode, queue, width), func(b *testing.B) {
					sideBySide(b, width, func(i int) error {
						r := request(fmt.Sprint("bench ", mode, i), mode)
						r.Queue = queue
						_, err := locks.Acquire(b.Context(), r)
						for errors.Is(err, driver.ErrHeld) { // a permit's last holder may still be leaving the queue
							_, err = locks.Acquire(b.Context(), r)
						}
						if err == nil {
							err = locks.Release(b.Context(), r.Hold)
						}
						return err
					})
				})
			}
		}
	}
}

// sideBySide runs f for b.N times in all, in so many goroutines.
func sideBySide(b *testing.B, width int, f func(i int) error) {
	b.ReportAllocs()
	var wg sync.WaitGroup
	for i := range width {
		wg.Go(func() {
			for n := i; n < b.N; n += width {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	chroot := "/odd-" + driver.NewOwner()
	makeNode(t, admin(t), chroot, "", zk.Persistent)
	oddnames.Try(t, open(t, testserver.SharedZooKeeper(t).URL()+chroot), nil)
}

func TestConformanceWhileRefused(t *testing.T) {
	t.Parallel()
	for kind, enter := range entrances {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				e := enter(t)
				return drivertest.Harness{
					TTL:      6 * time.Second,
					Withdraw: e.withdraw,
					Open: func(ctx context.Context) (driver.Backend, error) {
						b, err := Open(ctx, patiently(e.url))
						if err != nil {
							return nil, err
						}
						b.caps.Name = e.url
						r := request("", driver.Exclusive) // a refusal of the first call would be a fact
						r.TTL = 6 * time.Second
						_, err = b.Acquire(ctx, r)
						return b, errors.Join(err, b.Release(ctx, r.Hold))
					},
				}
			})
		})
	}
}

// For four seconds the servers refuse the user of all programs. A waiter, a candidate and a holder go on, and what was
// unlocked, or given up, meanwhile blocks nobody.
func TestProgramsWhileRefused(t *testing.T) {
	t.Parallel()
	for kind, enter := range entrances {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e := enter(t)
			locktest.Outlive(t, true, func() driver.Backend { return must.Get(Open(t.Context(), patiently(e.url)))(t) }, func(p *locktest.Programs) {
				restore := e.withdraw()
				end := time.Now().Add(4 * time.Second)
				p.UnlockInVain()
				time.Sleep(time.Until(end))
				restore()
			})
		})
	}
}

// The commands of the page, in ZooKeeper's shell, make a chroot in which its user can do all. Without either right it
// can't, nor can another user.
func TestRights(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedZooKeeper(t)
	var script []string
	for _, start := range []string{"addauth ", "create ", "setAcl "} {
		script = append(script, rights.Example(t, "zookeeper.md", start)...)
	}
	all := strings.Join(script, "\n") + "\n"
	if !strings.Contains(all, ":cr\n") || strings.Count(all, "/locks") != 2 {
		t.Fatalf("the example is %q", all)
	}
	chroots := map[string]string{"cr": "/rights", "c": "/rights-c", "r": "/rights-r"}
	var input string
	for perms, chroot := range chroots {
		input += strings.NewReplacer("/locks", chroot, ":cr\n", ":"+perms+"\n").Replace(all)
	}
	shell := testserver.ZooKeeperShell(t, srv)
	shell.Stdin = strings.NewReader(input + "quit\n")
	out, err := shell.CombinedOutput()
	must.OK(t, err, string(out))
	for perms, chroot := range chroots {
		err := rights.Tour(t.Context(), "zk://app:password@"+srv.Addr()+chroot+"?acl=creator&timeout=2m")
		if (err == nil) != (perms == "cr") {
			t.Errorf("with the rights %s: %v\n%s", perms, err, out)
		}
	}
	if err := rights.Tour(t.Context(), "zk://other:password@"+srv.Addr()+"/rights?acl=creator&timeout=2m"); err == nil {
		t.Error("another user has the rights")
	}
}

// ZooKeeper reads its certificate at its start, so bad ones are shown by an entrance before it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	srv := testserver.ZooKeeper(t, testserver.ZooKeeperOptions{TLS: true, ClientCert: true})
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, good bool) string {
		addr := srv.SecureAddr()
		if !good {
			addr = testcert.Entrance(t, srv.Addr(), shown)
		}
		return "zks://" + addr + "?timeout=2m"
	}})
	locktest.OpenFails(t, Open, "zk://"+srv.SecureAddr()+"?timeout=30s", false, srv.SecureAddr(), "TLS")
}
