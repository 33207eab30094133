package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/distlock/distlock/backend/kubelock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record/recordtest"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var holdsFlag = flag.Int("storm.holds", 40, "holds of the storm, an eighth of them client-go's at least")

// Clients of both sides hold the same Leases in turn and never at once, while requests and answers are lost and late, and some die.
func TestLongStorm(t *testing.T) {
	t.Parallel()
	clients := 10 + *holdsFlag/100 // many are more than a busy machine answers in their time
	names := clients
	srv := testserver.SharedKube(t)
	namespace, p := srv.Namespace(), faultproxy.New(t, srv.Plain())
	config := srv.Kubeconfig("http://"+p.Addr(), "admin")
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	backends := make([]driver.Backend, clients)
	for i := range backends { // before there is a storm
		b := must.Get(kubelock.Open(t.Context(), "kube:///"+namespace+"?timeout=10m&kubeconfig="+url.QueryEscape(config)))(t)
		t.Cleanup(func() { b.Close() })
		backends[i] = b
	}
	p.Late(2 * time.Second)
	p.Storm(seed, 0.05, "/leases")
	saw := exclusion.New()
	storm := recordtest.Storm{
		Clients: clients, Names: names, Holds: *holdsFlag, TTL: 2 * time.Second, Seed: seed, Checker: saw,
		Open: func(client int, _ func() time.Time) driver.Backend { return backends[client] },
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*holdsFlag)*10*time.Second)
	defer cancel()
	var done atomic.Bool
	var theirs, wrong atomic.Int64
	enough := func() bool { return ctx.Err() != nil || done.Load() && theirs.Load() >= int64(*holdsFlag/8) }
	var wg sync.WaitGroup
	for i := range clients / 2 {
		client := must.Get(kubernetes.NewForConfig(&rest.Config{Host: "http://" + p.Addr(), BearerToken: "admin", QPS: -1}))(t)
		wg.Go(func() {
			for random := rand.New(rand.NewPCG(seed, uint64(1000+i))); !enough(); {
				c := &candidacy{client: client, namespace: namespace, name: fmt.Sprint("lock ", random.IntN(names)), random: random, wrong: &wrong}
				if c.run(t, saw) {
					theirs.Add(1)
				}
			}
		})
	}
	storm.Run(ctx)
	done.Store(true)
	wg.Wait()
	saw.Judge(t, *holdsFlag/recordtest.Few)
	turns := 0
	for i := range names {
		turns += saw.Turns(fmt.Sprint("lock ", i))
	}
	t.Logf("%d releases of client-go's that would have written over the hold of another", wrong.Load())
	t.Logf("%d holds of client-go's, %d requests or answers lost, %d of them late, %d changes of the holder", theirs.Load(), p.Lost(), p.HeldBack(), turns)
}

// candidacy is one attempt of client-go's to hold a Lease. It is a Hold of its checker.
type candidacy struct {
	client          kubernetes.Interface
	namespace, name string
	random          *rand.Rand
	wrong           *atomic.Int64 // releases over the hold of another
	lock            *timedLock
	term            context.Context
	led             chan struct{} // closed when its term has ended
}

// run competes for a while, and reports whether it led.
func (c *candidacy) run(t *testing.T, saw *exclusion.Checker) bool {
	const lease = 2 * time.Second
	ctx, stop := context.WithTimeout(t.Context(), 3*lease)
	defer stop()
	identity := "client-go " + driver.NewOwner()
	c.lock = &timedLock{wrong: c.wrong, Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: strings.ReplaceAll(c.name, " ", "0x20")}, Client: c.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}
	works := time.Duration(c.random.Int64N(int64(lease / 20)))
	if c.random.IntN(4) == 0 {
		works = time.Duration(c.random.Int64N(int64(2 * lease)))
	}
	c.led = make(chan struct{})
	e := must.Get(leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lock, LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: lease / 8, ReleaseOnCancel: c.random.IntN(10) > 0, // else it dies
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { // in a goroutine
				defer close(c.led)
				c.term = term
				saw.Enter("client-go", c)
				select {
				case <-time.After(works):
				case <-term.Done():
				}
				saw.Leave(c)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	}))(t)
	e.Run(ctx)
	if c.lock.until.IsZero() { // no write was answered
		return false
	}
	<-c.led
	return true
}

func (c *candidacy) Name() string  { return c.name }
func (c *candidacy) Fence() uint64 { return 0 }

// Err says that the term has ended, or the Lease by who wrote it: client-go itself counts from the answer.
func (c *candidacy) Err() error {
	c.lock.mu.Lock()
	defer c.lock.mu.Unlock()
	if !time.Now().Before(c.lock.until) {
		return context.DeadlineExceeded
	}
	return c.term.Err()
}

// timedLock notes until when the last write keeps others out, and does not let client-go's release write over the hold of another:
// what it has read then it does not look at.
type timedLock struct {
	resourcelock.Interface
	wrong  *atomic.Int64
	mu     sync.Mutex
	until  time.Time
	holder string // in what was read last
}

func (l *timedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.mu.Lock()
		l.holder = r.HolderIdentity
		l.mu.Unlock()
	}
	return r, raw, err
}

func (l *timedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(r, func() error { return l.Interface.Create(ctx, r) })
}

func (l *timedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	holder := l.holder
	l.mu.Unlock()
	if r.HolderIdentity == "" && holder != l.Identity() {
		l.wrong.Add(1)
		return errors.New("another one holds the Lease")
	}
	return l.write(r, func() error { return l.Interface.Update(ctx, r) })
}

func (l *timedLock) write(r resourcelock.LeaderElectionRecord, write func() error) error {
	began := time.Now()
	err := write()
	if err == nil && r.HolderIdentity != "" {
		l.mu.Lock()
		l.until, l.holder = began.Add(time.Duration(r.LeaseDurationSeconds)*time.Second), r.HolderIdentity
		l.mu.Unlock()
	}
	return err
}
