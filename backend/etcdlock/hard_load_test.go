package etcdlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	hardTTL = 2 * time.Second

	// longTTL outlives every fault: also that a leader of etcd 3.4.23 which was paused for half a
	// minute, on a busy machine, ends what it takes for leases that nobody renewed meanwhile.
	longTTL = 2 * time.Minute
	patient = 3 * time.Minute // for what takes a second or two
)

// program is one of the processes that want locks: with a client of its own, and a way of
// its own to each of the members.
type program struct {
	name  string
	ways  []*faultproxy.Proxy
	locks *distlock.Client
}

func (p *program) silence() {
	for _, w := range p.ways {
		w.Silence()
	}
}

func (p *program) pass() {
	for _, w := range p.ways {
		w.Pass()
	}
}

// load is programs that take turns on a few locks of one cluster while somebody breaks
// things.
type load struct {
	*exclusion.Ledger
	t        testing.TB
	g        *testserver.EtcdClusterGroup
	programs []*program
	sitter   *program        // holds what everybody wants when something breaks
	keeper   *distlock.Lease // has one lock all the time
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	failed   atomic.Int64 // waits that ended without a hold
}

// contended is the lock that everybody wants; each of the cold ones two programs want.
const contended = "hot"

func startLoad(t testing.TB, g *testserver.EtcdClusterGroup) *load {
	t.Helper()
	l := &load{Ledger: exclusion.New(), t: t, g: g}
	l.ctx, l.stop = context.WithCancel(t.Context())
	for i := range 4 {
		p := l.open(fmt.Sprintf("program %d", i))
		l.contend(p, contended)
		l.contend(p, fmt.Sprintf("cold%d", i/2))
	}
	l.contend(l.programs[0], contended) // a second goroutine of one program
	l.sitter = l.open("sitter")
	l.keeper = l.take(l.open("keeper"), "kept", distlock.WithTTL(longTTL))
	return l
}

// open starts a program.
func (l *load) open(name string) *program {
	l.t.Helper()
	p := &program{name: name}
	var hosts []string
	for _, addr := range l.g.Addrs() {
		w := faultproxy.New(l.t, addr)
		p.ways, hosts = append(p.ways, w), append(hosts, w.Addr())
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

// take takes a lock for longer.
func (l *load) take(p *program, name string, opts ...distlock.LockOption) *distlock.Lease {
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

// give gives a lock back.
func (l *load) give(lease *distlock.Lease) {
	l.Leave(lease)
	lease.Unlock(context.Background()) // who has lost it hears so once more
}

// contend lets a goroutine take a lock again and again.
func (l *load) contend(p *program, name string) {
	m := p.locks.Mutex(name)
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			if err := l.turn(p, m); err != nil && l.ctx.Err() == nil {
				l.failed.Add(1)
			}
		}
	})
}

// turn takes a lock, keeps it for a moment and gives it back, unless it is lost earlier.
func (l *load) turn(p *program, m *distlock.Mutex) error {
	ctx, cancel := context.WithTimeout(l.ctx, patient)
	defer cancel()
	return l.Hold(ctx, p.name, m, time.Duration(1+rand.IntN(60))*time.Millisecond)
}

// more waits until a lock was taken so many times again, and says how long that took.
func (l *load) more(name string, n int) time.Duration {
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

// finish ends the load and looks at what was done, and at what is left.
func (l *load) finish(floor int) {
	l.t.Helper()
	if err := l.keeper.Err(); err != nil {
		l.t.Errorf("a lock with a TTL of %v was lost: %v", longTTL, err)
	}
	l.give(l.keeper)
	l.stop()
	l.wg.Wait()
	for _, p := range l.programs {
		p.locks.Close()
	}
	l.Judge(l.t, floor)
	l.t.Logf("%d waits in vain", l.failed.Load())
	l.nothingLeft()
}

// nothingLeft waits until the servers have neither keys nor leases. What a program left
// that was cut off ends with its TTL.
func (l *load) nothingLeft() {
	l.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: l.g.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	for {
		keys, err := c.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			l.t.Fatal(err)
		}
		leases, err := c.Leases(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		if len(keys.Kvs) == 0 && len(leases.Leases) == 0 {
			return
		}
		if ctx.Err() != nil {
			l.t.Fatalf("keys and leases that are left: %v, %v", keys.Kvs, leases.Leases)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
