// Package faultfuzz lets clients of a backend take, renew and release locks over networks that
// lose requests and answers, and hold requests back until long after their senders have gone
// on. It judges what the clients may believe.
//
// Holders renew for a short life and for a long one, as Extend does. A hold is believed for the
// longest life that was confirmed, counted from before the request. Then:
//
//   - no two holds of one lock are believed at once (but see Case.Connected);
//   - nobody is told that a hold is lost, or is somebody else's, while it is believed;
//   - each grant's fence is above those of all grants that were answered before it was asked for;
//   - a release does not succeed where a later grant had been answered before;
//   - when all is over every lock is free.
package faultfuzz

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/exclusion"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

var (
	callsFlag = flag.Int("late.calls", 150, "how many calls each case of the tests with late requests makes")
	holdFlag  = flag.Duration("late.hold", time.Second, "the longest that these tests hold a request back")
	seedFlag  = flag.Uint64("late.seed", 0, "seed of what these tests lose and hold back; 0: another one each time")
)

const (
	clients   = 3
	workers   = 18
	names     = 9   // at a time
	perName   = 100 // calls, on average, before another name takes its place
	longShort = 4   // the long life, in short ones
	leastLate = 3   // requests
	patience  = time.Minute
)

// Case is a backend, and how to break its network.
type Case struct {
	Servers []string // addresses; each client reaches each by a proxy of its own

	// Open makes a client that reaches the servers at these addresses.
	Open func(ctx context.Context, addrs []string) (driver.Backend, error)

	// TTL is the short life. 0: 400 ms. It is at least the backend's MinTTL.
	TTL time.Duration

	// Rate is how many requests with Text in them have no answer. 0: one in twenty.
	Rate float64
	Text string

	// Connected says that a hold ends at the server with its connection, of which its
	// holder hears a moment later: overlaps are possible, and told apart by their fences.
	Connected bool
}

// Run is the test of one case: -late.calls says how long it is.
func Run(t *testing.T, c Case) {
	t.Helper()
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	f := Play(t, c, seed, *callsFlag, *holdFlag)
	t.Logf("-late.seed %d: %s", seed, f)
	for _, fault := range f.Faults {
		t.Error(fault)
	}
}

// Report is what a case came to.
type Report struct {
	Calls, Unknown, Grants, Renewals int64
	Lost, Late                       int64 // requests or answers that were lost, and that were late
	Faults                           []string
}

func (r Report) String() string {
	return fmt.Sprintf("%d calls, %d of them without an answer; %d grants and %d renewals; %d requests were lost or late, %d of them late",
		r.Calls, r.Unknown, r.Grants, r.Renewals, r.Lost, r.Late)
}

// fuzz is one run.
type fuzz struct {
	Case
	prefix   string // of the names
	seed     uint64
	long     time.Duration
	calls    int64
	caps     driver.Caps
	backends []driver.Backend
	proxies  []*faultproxy.Proxy
	ledger   *exclusion.Ledger
	began    time.Time

	made, unknown, grants, renewals atomic.Int64

	mu     sync.Mutex
	fences map[string]uint64 // by name: the greatest that was answered
	faults []string
}

// Play makes so many calls, or fewer if something is wrong, and more if they were too easy.
func Play(t *testing.T, c Case, seed uint64, calls int, hold time.Duration) Report {
	t.Helper()
	f := &fuzz{
		Case: c, prefix: "late:" + driver.NewOwner()[:8], seed: seed, calls: int64(calls),
		ledger: exclusion.New(), began: time.Now(), fences: map[string]uint64{},
	}
	f.open(t)
	f.storm(hold)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i := range workers {
		w := &worker{fuzz: f, who: fmt.Sprint("worker ", i), b: f.backends[i%clients], rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		wg.Go(func() {
			for !f.enough() && ctx.Err() == nil && !f.failed() {
				w.turn(ctx)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Errorf("it took longer than 10 minutes: %s", f.report()) // no fault that a test may want
	}
	f.calm(t)
	return f.report()
}

// enough reports whether there were as many calls as are wanted, and hard ones among them.
func (f *fuzz) enough() bool {
	if f.made.Load() < f.calls {
		return false
	}
	r := f.report()
	return r.Late >= leastLate && r.Grants >= f.calls/40 && r.Renewals >= f.calls/40
}

// open makes the clients, and how they reach the servers.
func (f *fuzz) open(t *testing.T) {
	t.Helper()
	for range clients {
		var addrs []string
		for _, server := range f.Servers {
			p := faultproxy.New(t, server)
			f.proxies, addrs = append(f.proxies, p), append(addrs, p.Addr())
		}
		f.backends = append(f.backends, f.connect(t, addrs))
	}
	f.caps = f.backends[0].Caps()
	f.TTL = max(cmp.Or(f.TTL, 400*time.Millisecond), f.caps.MinTTL)
	f.long = longShort * f.TTL
}

func (f *fuzz) connect(t *testing.T, addrs []string) driver.Backend {
	t.Helper()
	b, err := f.Open(t.Context(), addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func (f *fuzz) storm(hold time.Duration) {
	for i, p := range f.proxies {
		p.Late(hold)
		p.Storm(f.seed+uint64(i), cmp.Or(f.Rate, 0.05), f.Text)
	}
}

// calm lets what is held back arrive, and wants every lock to be free in the end.
func (f *fuzz) calm(t *testing.T) {
	t.Helper()
	for _, p := range f.proxies {
		p.Storm(0, 0, "")
	}
	for _, p := range f.proxies {
		for p.Held() > 0 && !f.failed() {
			time.Sleep(time.Millisecond)
		}
	}
	if f.failed() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience+f.long)
	defer cancel()
	b := f.connect(t, f.Servers)
	for name := range f.fences {
		f.free(ctx, b, name)
	}
}

// free waits until a lock can be taken.
func (f *fuzz) free(ctx context.Context, b driver.Backend, name string) {
	for {
		r := f.request(name)
		before := f.fence(name)
		g, err := b.Acquire(ctx, r)
		if err == nil {
			f.granted(name, "who came last", before, g)
		}
		for err == nil {
			if err = b.Release(ctx, r.Hold); err == nil {
				return
			}
		}
		if ctx.Err() != nil || driver.Final(err) {
			f.fault("in the end %q is not free: %v", name, err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (f *fuzz) request(name string) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: f.TTL},
		Fences: 1,
	}
}

// name is one of those that are in use now.
func (f *fuzz) name(rnd *rand.Rand) string {
	return fmt.Sprintf("%s:%d", f.prefix, f.made.Load()/(names*perName)*names+rnd.Int64N(names))
}

func (f *fuzz) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fmt.Sprintf("%8.3f s, call %d: ", time.Since(f.began).Seconds(), f.made.Load())+fmt.Sprintf(format, args...))
}

func (f *fuzz) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.faults) > 0 || !f.Connected && len(f.ledger.Faults()) > 0
}

// fence is the greatest fence that was answered so far.
func (f *fuzz) fence(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fences[name] += 0 // to be free in the end, too
	return f.fences[name]
}

// granted judges the fence of a grant that was asked for when the greatest one was before.
func (f *fuzz) granted(name, who string, before uint64, g driver.Grant) {
	if f.caps.Fence && g.Fence <= before {
		f.fault("%s got %q with fence %d after %d", who, name, g.Fence, before)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fences[name] = max(f.fences[name], g.Last())
}

func (f *fuzz) report() Report {
	f.mu.Lock()
	faults := slices.Clone(f.faults)
	f.mu.Unlock()
	r := Report{Calls: f.made.Load(), Unknown: f.unknown.Load(), Grants: f.grants.Load(), Renewals: f.renewals.Load(), Faults: faults}
	for _, p := range f.proxies {
		r.Lost += p.Lost()
		r.Late += p.HeldBack()
	}
	if !f.Connected {
		r.Faults = append(r.Faults, f.ledger.Faults()...)
	}
	return r
}
