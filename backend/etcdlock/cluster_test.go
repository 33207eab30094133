package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// fault is injected while a program holds the lock that all want.
type fault struct {
	name  string
	lasts time.Duration // how long the holder keeps the lock unless it loses it
	loses bool          // it must
	what  func(l *clusterLoad) (heal func())
}

func TestLeaderIsKilled(t *testing.T) {
	runFaults(t, testserver.EtcdOptions{}, []fault{{"the leader is killed", time.Second, false, leaderKilled}})
	awaitNoGoroutines(t)
}

// Under faults a cluster's locks have one holder at a time: a holder's context ends before another
// program has the lock, whether the holder, a server or the network fails. Then work goes on.
func TestLongClusterFaults(t *testing.T) {
	var wg sync.WaitGroup
	two := make(chan struct{}, 2) // clusters at once: more of them find no leader on a busy machine
	for name, faults := range map[string][]fault{
		"members": {
			{"the leader is killed", 3 * time.Second, false, leaderKilled},
			{"each member is restarted", time.Second, false, eachRestarted},
		},
		"pauses": {
			{"the leader pauses for less than a TTL", time.Second, false, leaderPaused},
			{"the leader pauses for longer than a TTL", 2 * hardTTL, false, leaderPaused},
		},
		"partitions": {
			{"the leader is cut off from the others", 2 * hardTTL, false, leaderIsolated},
			{"a follower is cut off from the others", 2 * hardTTL, false, followerIsolated},
		},
		"networks": {
			{"the holder is cut off", patient, true, holderCutOff},
			{"the leader is unreachable", 2 * hardTTL, false, leaderUnreachable},
			{"the history is compacted", hardTTL, false, compacted},
			{"the holder is cut off again", patient, true, holderCutOff},
		},
	} {
		// A leader of etcd 3.4.23 that was paused ends leases that its successor has prolonged.
		options := testserver.EtcdOptions{Current: name == "pauses", Args: patientElections}
		wg.Go(func() {
			two <- struct{}{}
			defer func() { <-two }()
			t.Run(name, func(t *testing.T) { runFaults(t, options, faults) })
		})
	}
	wg.Wait()
	awaitNoGoroutines(t)
}

func runFaults(t *testing.T, options testserver.EtcdOptions, faults []fault) {
	l := startLoad(t, testserver.EtcdCluster(t, options))
	for _, f := range faults {
		l.inject(f)
	}
	l.finish(30)
}

// inject injects one fault. Work must go on before, during and after it.
func (l *clusterLoad) inject(f fault) {
	l.t.Helper()
	l.awaitTurns(contended, 5)
	lease := l.acquire(l.holder, contended)
	start := time.Now()
	heal := f.what(l)
	select {
	case <-lease.Context().Done():
		l.t.Logf("%s: the holder loses the lock after %v: %v", f.name, since(start), context.Cause(lease.Context()))
	case <-time.After(f.lasts):
		l.t.Logf("%s: the holder keeps the lock", f.name)
	}
	if f.loses && !errors.Is(lease.Err(), distlock.ErrLost) {
		l.t.Errorf("%s: the holder's lease: %v", f.name, lease.Err())
	}
	ended := time.Now()
	l.release(lease)
	next := l.awaitTurns(contended, 1)
	l.t.Logf("%s: the next has it %v later, and others go on %v after that", f.name, next.Round(time.Millisecond), l.awaitTurns(contended, 5).Round(time.Millisecond))
	if rest := f.lasts - time.Since(start); rest > 0 && !f.loses {
		time.Sleep(rest) // for the whole fault
	}
	heal()
	healed := time.Now()
	l.awaitTurns(contended, 5)
	l.awaitTurns("cold0", 1)
	l.awaitTurns("cold1", 1)
	l.t.Logf("%s: healed %v after the hold's end, all work again after %v", f.name, healed.Sub(ended).Round(time.Millisecond), since(healed))
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

func leaderKilled(l *clusterLoad) func() {
	old := l.g.Leader()
	old.Kill()
	return func() {
		l.g.AwaitLeader(old)
		old.Start()
	}
}

func eachRestarted(l *clusterLoad) func() {
	for _, s := range l.g.Members() {
		s.Stop()
		s.Start()
	}
	return func() {}
}

func leaderPaused(l *clusterLoad) func() {
	s := l.g.Leader()
	s.Pause()
	return s.Resume
}

func leaderIsolated(l *clusterLoad) func() {
	l.g.Isolate(l.g.Leader())
	return l.g.Heal
}

func followerIsolated(l *clusterLoad) func() {
	l.g.Isolate(l.g.Followers()[0])
	return l.g.Heal
}

// holderCutOff keeps the holder's connections open, and delivers nothing.
func holderCutOff(l *clusterLoad) func() {
	l.holder.silence()
	return l.holder.pass
}

// leaderUnreachable keeps all connections to the leader open, and delivers nothing.
func leaderUnreachable(l *clusterLoad) func() {
	leader, i := l.g.Leader(), 0
	for l.g.Members()[i] != leader {
		i++
	}
	for _, p := range l.programs {
		p.proxies[i].Silence()
	}
	return func() {
		for _, p := range l.programs {
			p.proxies[i].Pass()
		}
	}
}

// eventually repeats a call until it succeeds: the cluster may be without a leader.
func (l *clusterLoad) eventually(call func() error) {
	l.t.Helper()
	err := call()
	for start := time.Now(); err != nil && time.Since(start) < patient; err = call() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// compacted compacts the revisions from which waiters watch, and cuts their connections.
func compacted(l *clusterLoad) func() {
	c := must.Get(clientv3.New(clientv3.Config{Endpoints: l.g.Addrs(), Logger: zap.NewNop()}))(l.t)
	defer c.Close()
	for range 3 {
		var at int64
		for range 20 {
			l.eventually(func() error {
				put, err := c.Put(l.ctx, "other", "x")
				if err == nil {
					at = put.Header.Revision
				}
				return err
			})
		}
		l.eventually(func() error {
			_, err := c.Compact(l.ctx, at)
			if errors.Is(err, rpctypes.ErrCompacted) { // by a call without an answer
				return nil
			}
			return err
		})
		for _, p := range l.programs {
			for _, w := range p.proxies {
				w.Cut()
			}
		}
	}
	l.eventually(func() error {
		_, err := c.Delete(l.ctx, "other")
		return err
	})
	return func() {}
}

// awaitNoGoroutines waits until no goroutine of a backend or a connection is left.
func awaitNoGoroutines(t *testing.T) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var b strings.Builder
		pprof.Lookup("goroutine").WriteTo(&b, 1)
		if left = b.String(); !strings.Contains(left, "etcdlock.(*") && !strings.Contains(left, "google.golang.org/grpc") {
			return
		}
	}
	t.Errorf("goroutines that are left:\n%s", left)
}

const (
	hardTTL = 2 * time.Second

	// longTTL outlives every fault. A paused leader of etcd 3.4.23 may also end leases that were not
	// renewed during the pause.
	longTTL = 2 * time.Minute
	patient = 3 * time.Minute // for what takes a second or two
)

// patientElections are etcd's own timeouts: leases last for two seconds at least.
var patientElections = []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}

// program is a simulated process, with a client of its own and a proxy to each member.
type program struct {
	name    string
	proxies []*faultproxy.Proxy
	locks   *distlock.Client
}

func (p *program) silence() {
	for _, w := range p.proxies {
		w.Silence()
	}
}

func (p *program) pass() {
	for _, w := range p.proxies {
		w.Pass()
	}
}

// clusterLoad is a set of programs that take turns on a few locks of one cluster during faults.
type clusterLoad struct {
	*exclusion.Checker
	t        testing.TB
	g        *testserver.EtcdClusterGroup
	programs []*program
	holder   *program        // has the contended lock during a fault
	keeper   *distlock.Lease // has one lock all the time
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	failed   atomic.Int64 // waits that ended without a hold
}

// contended is the lock that all programs want. Two programs want each of the cold ones.
const contended = "hot"

func startLoad(t testing.TB, g *testserver.EtcdClusterGroup) *clusterLoad {
	t.Helper()
	l := &clusterLoad{Checker: exclusion.New(), t: t, g: g}
	l.ctx, l.stop = context.WithCancel(t.Context())
	for i := range 4 {
		p := l.open(fmt.Sprintf("program %d", i))
		l.contend(p, contended)
		l.contend(p, fmt.Sprintf("cold%d", i/2))
	}
	l.contend(l.programs[0], contended) // a second goroutine of one program
	l.holder = l.open("holder")
	l.keeper = l.acquire(l.open("keeper"), "kept", distlock.WithTTL(longTTL))
	return l
}

// open starts a program.
func (l *clusterLoad) open(name string) *program {
	l.t.Helper()
	p := &program{name: name}
	var hosts []string
	for _, addr := range l.g.Addrs() {
		w := faultproxy.New(l.t, addr)
		p.proxies, hosts = append(p.proxies, w), append(hosts, w.Addr())
	}
	b, err := etcdlock.Open(l.t.Context(), "etcd://"+strings.Join(hosts, ",")+"/hard?timeout=2m")
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	if p.locks, err = distlock.New(b, &distlock.Options{TTL: hardTTL}); err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	l.programs = append(l.programs, p)
	return p
}

// acquire acquires a lock and keeps it.
func (l *clusterLoad) acquire(p *program, name string, opts ...distlock.LockOption) *distlock.Lease {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, patient)
	defer cancel()
	lease, err := p.locks.Mutex(name, opts...).Lock(ctx)
	if err != nil {
		l.t.Fatalf("%s: %v", p.name, err)
	}
	l.Enter(p.name, lease)
	return lease
}

// release releases a lock.
func (l *clusterLoad) release(lease *distlock.Lease) {
	l.Leave(lease)
	lease.Unlock(context.Background()) // which fails if it was lost
}

// contend acquires and releases a lock in a loop.
func (l *clusterLoad) contend(p *program, name string) {
	m := p.locks.Mutex(name)
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			if err := l.turn(p, m); err != nil && l.ctx.Err() == nil {
				l.failed.Add(1)
			}
		}
	})
}

// turn acquires a lock, keeps it for a moment unless it is lost, and releases it.
func (l *clusterLoad) turn(p *program, m *distlock.Mutex) error {
	ctx, cancel := context.WithTimeout(l.ctx, patient)
	defer cancel()
	return l.Hold(ctx, p.name, m, time.Duration(1+rand.IntN(60))*time.Millisecond)
}

// awaitTurns waits until a lock was acquired n more times, and returns how long that took.
func (l *clusterLoad) awaitTurns(name string, n int) time.Duration {
	l.t.Helper()
	start := time.Now()
	for want := l.Times(name) + n; l.Times(name) < want; time.Sleep(time.Millisecond) {
		if time.Since(start) > patient {
			l.t.Errorf("%s was taken %d times in %v, want %d", name, l.Times(name)-want+n, patient, n)
			break
		}
	}
	return time.Since(start)
}

// finish ends the load and checks the record of holds, and that nothing is left.
func (l *clusterLoad) finish(floor int) {
	l.t.Helper()
	// It is renewed once a third of its TTL has passed, so that a shorter standstill of the cluster costs no lock.
	if err := l.keeper.Err(); err != nil && l.standstill() < longTTL/2 {
		l.t.Errorf("a lock with a TTL of %v was lost, and the cluster stood still for %v at most: %v", longTTL, l.standstill(), err)
	}
	l.release(l.keeper)
	l.stop()
	l.wg.Wait()
	for _, p := range l.programs {
		p.locks.Close()
	}
	l.Judge(l.t, floor)
	l.t.Logf("%d waits in vain", l.failed.Load())
	l.awaitNothingLeft()
}

// standstill returns the longest time for which no lock was granted.
func (l *clusterLoad) standstill() time.Duration {
	return min(l.Unused(contended), l.Unused("cold0"), l.Unused("cold1"))
}

// awaitNothingLeft waits until the servers have neither keys nor leases. Leases of a program that was cut off
// end with their TTL.
func (l *clusterLoad) awaitNothingLeft() {
	l.t.Helper()
	c := must.Get(clientv3.New(clientv3.Config{Endpoints: l.g.Addrs(), Logger: zap.NewNop()}))(l.t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	for {
		keys, err := c.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		var leases *clientv3.LeaseLeasesResponse
		if err == nil {
			leases, err = c.Leases(ctx)
		}
		if err == nil && len(keys.Kvs) == 0 && len(leases.Leases) == 0 {
			return
		}
		if ctx.Err() != nil {
			l.t.Fatalf("keys and leases that are left: %+v, %+v, %v", keys, leases, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
