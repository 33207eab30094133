package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	acquire    = locktest.Acquire
	eventually = locktest.Eventually
)

// masters are five independent servers that keep their data in memory.
type masters [5]*testserver.RedisServer

func startMasters(t testing.TB) masters {
	var ms masters
	for i := range ms {
		ms[i] = testserver.Redis(t)
	}
	return ms
}

// network is one process's way to the masters.
type network [5]*faultproxy.Proxy

func (ms masters) network(t testing.TB) network {
	var n network
	for i, m := range ms {
		n[i] = faultproxy.New(t, m.Addr())
	}
	return n
}

func (ms masters) url() string {
	var hosts []string
	for _, m := range ms {
		hosts = append(hosts, m.Addr())
	}
	return "quorum+redis://" + strings.Join(hosts, ",")
}

// redlock makes a quorum over a network. It is closed when the test ends.
func (n network) redlock(t testing.TB, opts quorum.Options) *quorum.Backend {
	t.Helper()
	b := must.Get(n.open(t.Context(), opts))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func (n network) open(ctx context.Context, opts quorum.Options) (*quorum.Backend, error) {
	var members []driver.Backend
	for _, p := range n {
		m, err := redislock.Open(ctx, "redis://"+p.Addr())
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return quorum.New(members, &opts)
}

func request(name string, ttl time.Duration) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: ttl},
		Fences: 1,
	}
}

// tooLong is when a test no longer waits for what a busy machine has done long before.
const tooLong = time.Minute

func TestLongRedlockConformance(t *testing.T) {
	ms := startMasters(t)
	var networks faultproxy.Networks
	drivertest.Run(t, drivertest.Harness{
		TTL: 1500 * time.Millisecond,
		// Some of the suite's names are keys of a semaphore.
		Refuses: func(name string) bool { return strings.Contains(name, "{") && strings.HasSuffix(name, ":timeout") },
		Open: func(ctx context.Context) (driver.Backend, error) {
			n := ms.network(t)
			b, err := n.open(ctx, quorum.Options{Name: "redlock", MemberTimeout: 10 * time.Second})
			if err == nil {
				networks.Add(b, n[:]...)
			}
			return b, err
		},
		Cut: networks.Cut, LoseAnswers: networks.LoseAnswers,
	})
}

// Any two of five may be dead or behind a black hole: locks go on at the pace of the
// other three, and a lock that is held all the while is not lost, though in the end
// every member has been away. A busy machine may need a longer TTL.
func TestRedlockOutlivesAMinority(t *testing.T) {
	ms := startMasters(t)
	var err error
	for ttl := 3 * time.Second; ttl < tooLong; ttl *= 3 {
		if err = ms.outliveAMinority(t, ttl); err == nil {
			return
		}
		t.Logf("TTL %v: %v", ttl, err)
	}
	t.Error(err)
}

func (ms masters) outliveAMinority(t *testing.T, ttl time.Duration) error {
	n := ms.network(t)
	b := n.redlock(t, quorum.Options{MemberTimeout: ttl / 6})
	c := must.Get(distlock.New(b, &distlock.Options{TTL: ttl}))(t)
	held := must.Get(c.Mutex("held").Lock(t.Context()))(t)
	everywhere := func() {
		t.Helper()
		for i, m := range ms {
			eventually(t, fmt.Sprintf("member %d votes again for what is held", i), func() bool {
				v, err := m.Do("EXISTS", "held")
				return held.Err() != nil || err == nil && fmt.Sprint(v) == "1"
			})
		}
	}
	err := keepsPace(t, c, "all well", ttl/6)
	ms[0].Kill()
	ms[1].Kill()
	err = errors.Join(err, keepsPace(t, c, "two killed", ttl/6))
	ms[0].Start()
	ms[1].Start()
	everywhere()
	n[2].Silence()
	n[3].Silence()
	err = errors.Join(err, keepsPace(t, c, "two silent", ttl/6))
	n[2].Pass()
	n[3].Pass()
	everywhere()
	ms[4].Kill()
	n[0].Silence()
	err = errors.Join(err, keepsPace(t, c, "one of each", ttl/6), held.Err(), held.Unlock(t.Context()), c.Close())
	ms[4].Start()
	return err
}

// keepsPace locks and unlocks, and returns an error if that waits for members that are silent,
// whose calls end after memberTimeout.
func keepsPace(t *testing.T, c *distlock.Client, when string, memberTimeout time.Duration) error {
	t.Helper()
	err := lockAndUnlock(t, c) // finds out who is silent
	var took []time.Duration
	for range 9 {
		began := time.Now()
		err = errors.Join(err, lockAndUnlock(t, c))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median >= memberTimeout {
		err = errors.Join(err, fmt.Errorf("%s: a pair took %v: it waits for those who are silent", when, median))
	}
	return err
}

// lockAndUnlock returns why the lease was lost, as on a machine that stalls for longer than its TTL.
func lockAndUnlock(t testing.TB, c *distlock.Client) error {
	t.Helper()
	lease := must.Get(c.Mutex("work").Lock(t.Context()))(t)
	if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, distlock.ErrUnavailable) { // the client goes on with it
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// When three of five members are gone, nothing can be renewed. The holder is notified, and no
// other client gets the lock.
func TestRedlockWithoutAMajority(t *testing.T) {
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{MemberTimeout: tooLong / 2})
	c := must.Get(distlock.New(b, &distlock.Options{TTL: time.Second}))(t)
	defer c.Close()
	lease := must.Get(c.Mutex("lock").Lock(t.Context()))(t)
	for _, m := range ms[:3] {
		m.Kill()
	}
	<-lease.Context().Done()
	if err := context.Cause(lease.Context()); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("the context ended because of %v, want ErrLost", err)
	}
	if _, err := c.Mutex("another").TryLock(t.Context()); !errors.Is(err, distlock.ErrUnavailable) {
		t.Errorf("without a majority: %v, want ErrUnavailable", err)
	}
}

// The hole in Redlock: three members restart within the TTL and have forgotten the
// first holder. The fence is the only thing that tells the two apart: it is greater,
// since the members count from a clock.
func TestRedlockRestartHole(t *testing.T) {
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{MemberTimeout: tooLong / 2})
	began, r := time.Now(), request("lock", 5*time.Minute)
	first := acquire(t, b, r)
	for _, m := range ms[:3] {
		m.Kill()
		m.Start()
	}
	var second driver.Grant
	eventually(t, "the second is let in", func() (ok bool) {
		var err error
		second, err = ms.network(t).redlock(t, quorum.Options{MemberTimeout: tooLong / 2}).Acquire(t.Context(), request("lock", 30*time.Second))
		return err == nil
	})
	both := first.TTL - time.Since(began)
	if both <= 0 {
		t.Fatal("the first lease ended before the second began")
	}
	t.Logf("two holders for %v, with fences %d and %d", both.Round(time.Millisecond), first.Fence, second.Fence)
	if second.Fence <= first.Last() {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
}

// The same with a restart that is delayed for longer than the TTL: there is no hole.
// Meanwhile the lock is not granted, and its holder can't renew it.
func TestRedlockDelayedRestart(t *testing.T) {
	t.Parallel()
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{MemberTimeout: tooLong / 2})
	const ttl = 2 * time.Second
	var began time.Time
	var r driver.Request
	var first driver.Grant
	eventually(t, "a majority is quick enough", func() bool {
		var err error
		began, r = time.Now(), request("lock", ttl)
		first, err = b.Acquire(t.Context(), r)
		return err == nil
	})
	for _, m := range ms[:3] {
		m.Kill()
	}
	killed := time.Now()
	other := request("lock", ttl)
	for time.Since(killed) < ttl+ttl/10 {
		if _, err := b.Acquire(t.Context(), other); err == nil {
			t.Fatalf("a second holder after %v", time.Since(began))
		}
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; err == nil {
			t.Fatal("a minority renewed")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if time.Since(began) < first.TTL {
		t.Fatal("the members restart too early")
	}
	for _, m := range ms[:3] {
		m.Start()
	}
	var second driver.Grant
	eventually(t, "the second is let in", func() (ok bool) {
		var err error
		second, err = b.Acquire(t.Context(), other)
		return err == nil
	})
	if second.Fence <= first.Last() {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
}

// Eight processes want one lock of five members again and again: votes are split, but each process
// gets its turns.
func TestRedlockContenders(t *testing.T) {
	const processes, turns = 8, 12
	ms := startMasters(t)
	var inside atomic.Int32
	var last atomic.Uint64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 10*tooLong)
	defer cancel()
	for range processes {
		c := must.Get(distlock.Open(t.Context(), ms.url(), locktest.Patient()))(t)
		defer c.Close()
		wg.Go(func() {
			for range turns {
				err := c.Mutex("lock").Do(ctx, func(ctx context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two at once")
					}
					if f := distlock.Fence(ctx); f <= last.Swap(f) {
						t.Errorf("fence %d is not greater than the one before", f)
					}
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A URL opens while a majority is there, and the others join later. Otherwise the error
// names each that failed, without its password.
func TestRedlockByURL(t *testing.T) {
	ms := startMasters(t)
	ms[3].Kill()
	ms[4].Kill()
	b := must.Get(driver.Open(t.Context(), ms.url()+"/0?prefix=app:&member_timeout=30s"))(t)
	defer b.Close()
	r := request("lock", 30*time.Second)
	acquire(t, b, r)
	if v, err := ms[0].Do("EXISTS", "app:lock"); err != nil || fmt.Sprint(v) != "1" {
		t.Errorf("the prefix is not the members': %v %v", v, err)
	}
	ms[3].Start()
	ms[4].Start()
	for _, m := range ms[3:] {
		eventually(t, "a late member votes", func() bool {
			acquire(t, b, r)
			v, err := m.Do("EXISTS", "app:lock")
			return err == nil && fmt.Sprint(v) == "1"
		})
	}
	if err := b.Release(t.Context(), r.Hold); err != nil {
		t.Error(err)
	}
	for i := range 3 {
		ms[i].Kill()
	}
	_, err := driver.Open(t.Context(), strings.Replace(ms.url(), "//", "//user:secret@", 1))
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("without a majority, and with a wrong password: %v", err)
	}
	for _, m := range ms {
		if !strings.Contains(err.Error(), m.Addr()) {
			t.Errorf("%v\ndoes not name %s", err, m.Addr())
		}
	}
}

// The cost of a lock: each of five members gets a vote, a renewal and a release; each member that
// voted in time, except the one with the greatest fence, also gets a command to raise its fence.
// Members that are slower than a majority get theirs a moment later, so all are counted in the
// end.
func TestRedlockCommands(t *testing.T) {
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{MemberTimeout: 10 * time.Second})
	r := request("lock", time.Minute)
	before, n, least, most := ms.scripts(t), 0, 0, 0
	for _, c := range []struct {
		what        string
		call        func() error
		least, most int
	}{
		{"lock", func() error { _, err := b.Acquire(t.Context(), r); return err }, 7, 10},
		{"renew", func() error { return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] }, 5, 5},
		{"unlock", func() error { return b.Release(t.Context(), r.Hold) }, 5, 5},
	} {
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		least, most = least+c.least, most+c.most
		eventually(t, c.what+" has reached all", func() bool { n = ms.scripts(t) - before; return n >= most || n >= least && ms.quiet(t) })
		t.Logf("%d commands until after %s", n, c.what)
	}
	if n > most {
		t.Errorf("a lock's life took %d commands, want at most %d", n, most)
	}
}

// quiet reports whether no script runs for a while.
func (ms masters) quiet(t testing.TB) bool {
	n := ms.scripts(t)
	time.Sleep(50 * time.Millisecond)
	return n == ms.scripts(t)
}

// scripts is how many scripts the masters have run, by EVALSHA or EVAL.
func (ms masters) scripts(t testing.TB) (n int) {
	t.Helper()
	calls := regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+).*failed_calls=(\d+)`)
	for _, m := range ms {
		stats := must.Get(m.Do("INFO", "commandstats"))(t)
		for _, c := range calls.FindAllStringSubmatch(fmt.Sprint(stats), -1) {
			ran, _ := strconv.Atoi(c[1])
			failed, _ := strconv.Atoi(c[2])
			n += ran - failed
		}
	}
	return n
}

// Pairs of acquire and release, uncontended: one server, and five.
func BenchmarkRedlock(b *testing.B) {
	ms := startMasters(b)
	one := must.Get(redislock.Open(b.Context(), ms[0].URL()))(b)
	defer one.Close()
	five := must.Get(quorum.Open(b.Context(), ms.url()))(b)
	defer five.Close()
	for _, side := range []struct {
		name string
		driver.Backend
	}{{"one", one}, {"five", five}} {
		b.Run(side.name, func(b *testing.B) {
			for b.Loop() {
				r := request("lock", time.Minute)
				acquire(b, side, r)
				must.OK(b, side.Release(b.Context(), r.Hold))
			}
		})
		b.Run(side.name+"/16", func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := request(driver.NewOwner(), time.Minute)
					acquire(b, side, r)
					if err := side.Release(b.Context(), r.Hold); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// Other data at a minority of the members costs its votes, and at a majority it is an error.
func TestRedlockAmongOtherData(t *testing.T) {
	ms := startMasters(t)
	b := ms.network(t).redlock(t, quorum.Options{MemberTimeout: tooLong / 2})
	set := func(n int, args ...string) {
		t.Helper()
		for _, m := range ms[:n] {
			must.Get(m.Do(args...))(t)
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
