// Package faultfuzz lets clients of a backend take, renew and release locks over networks that
// lose requests and answers, and hold requests back until long after their senders have gone
// on. It judges what the clients may believe.
//
// Holders renew for a short life and for a long one, as Extend does. A hold is believed for the
// longest life that was confirmed, counted from before the request. Then:
//
//   - no two holds of one lock are believed at once, but readers and permits (but see Case.Connected);
//   - no answer says that a hold is lost, or another's, while it is believed;
//   - each grant's fence is greater than the fence of every grant answered before its request;
//   - a release does not succeed where a later grant had been answered before;
//   - when all is over every lock is free.
package faultfuzz

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/proof/internal/course"
)

var (
	callsFlag = flag.Int("late.calls", 2000, "how many calls each case makes")
	holdFlag  = flag.Duration("late.hold", time.Second, "the longest that a request is held back")
	seedFlag  = flag.Uint64("late.seed", 0, "seed of what is lost and held back; 0: another one each time")
)

const (
	clients   = 3
	workers   = 18
	names     = 9   // at a time
	perName   = 100 // calls, on average, before another name takes its place
	longShort = 4   // the long life, in short ones
	leastLate = 3   // requests
	patience  = 5 * time.Minute
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

	// Modes are those of the locks; empty: Exclusive. Fair says that those that are refused are queued.
	Modes []driver.Mode
	Fair  bool

	// Connected says that a hold ends at the server with its connection. Its holder is notified a
	// moment later, so overlaps are possible. Their fences tell them apart.
	Connected bool
}

// judged is the test of one case.
func judged(t *testing.T, c Case) {
	t.Helper()
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	f := Play(t, c, seed, *callsFlag, *holdFlag)
	t.Logf("-late.seed %d: %s", seed, f)
	for _, fault := range f.Faults {
		t.Error(fault)
	}
}

// Report is the result of a case.
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
	checker  *exclusion.Checker
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
		checker: exclusion.New(), began: time.Now(), fences: map[string]uint64{},
	}
	f.open(t)
	f.storm(hold)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	var wg wait.Group
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
		t.Errorf("it took longer than half an hour: %s", f.report()) // no fault that a test may want
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
	b := must.Get(f.Open(context.Background(), addrs))(t)
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
	ctx, cancel := context.WithTimeout(context.Background(), patience+f.long)
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
		r.Queue = false // each attempt has another Owner
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
		Fences: 1, Queue: f.Fair,
	}
}

// name returns a name that is in use now.
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
	return len(f.faults) > 0 || !f.Connected && len(f.checker.Faults()) > 0
}

// fence returns the greatest fence that was answered so far.
func (f *fuzz) fence(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fences[name] += 0 // to be free in the end, too
	return f.fences[name]
}

// granted checks the fence of a grant. before was the greatest fence when the grant was requested.
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
		r.Faults = append(r.Faults, f.checker.Faults()...)
	}
	return r
}

// worker takes locks, one after the other.
type worker struct {
	*fuzz
	who string
	b   driver.Backend
	rnd *rand.Rand
}

// belief is a hold as its holder may believe in it.
type belief struct {
	name  string
	mode  driver.Mode
	fence uint64
	began time.Time
	until atomic.Int64 // since began
	lost  *atomic.Bool // an answer said so
}

func (b *belief) Name() string { return b.name }

func (b *belief) Fence() uint64 { return b.fence }

// Shares says who may hold beside this one.
func (b *belief) Shares() exclusion.Sharing { return course.Shares(b.mode) }

// Err says whether the hold is believed now.
func (b *belief) Err() error {
	if b.lost.Load() || int64(time.Since(b.began)) >= b.until.Load() {
		return driver.ErrLost
	}
	return nil
}

// extend moves the deadline to ttl after since, if that is later.
func (b *belief) extend(since time.Time, ttl time.Duration) {
	b.until.Store(max(b.until.Load(), int64(since.Add(ttl).Sub(b.began))))
}

// hold is one Owner's.
type hold struct {
	driver.Request
	*belief // of the latest grant; nil before the first
	lost    atomic.Bool
	unknown bool // an attempt had no answer, and may be granted at any moment
}

func (h *hold) believed() bool { return h.belief != nil && h.belief.Err() == nil }

// turn is the life of one Owner.
func (w *worker) turn(ctx context.Context) {
	h := &hold{Request: w.request(w.name(w.rnd))}
	h.TTL = w.life()
	if len(w.Modes) > 0 {
		h.Mode, h.Limit = w.Modes[w.rnd.IntN(len(w.Modes))], course.Permits
	}
	h.OnLost = func() { h.lost.Store(true) }
	for tries := 1 + w.rnd.IntN(3); tries > 0 && h.belief == nil; tries-- {
		w.acquire(ctx, h)
		w.pause(w.TTL / 4)
	}
	for steps := w.rnd.IntN(16); steps > 0 && h.believed(); steps-- {
		if w.step(ctx, h) || w.rnd.IntN(5) == 0 {
			w.pause(3 * w.TTL) // beyond the end of a short life
		} else {
			w.pause(w.TTL / 10)
		}
	}
	if h.belief != nil {
		w.checker.Leave(h.belief)
	}
	w.end(ctx, h)
}

// step returns a holder's next call. One that had no answer is followed by a renewal for the long
// life: the former may land after the latter. extended says that this was so.
func (w *worker) step(ctx context.Context, h *hold) (extended bool) {
	err := error(nil)
	if w.rnd.IntN(5) == 0 {
		err = w.acquire(ctx, h)
	} else {
		err = w.renew(ctx, h, w.life())
	}
	return isUnknown(err) && h.believed() && w.renew(ctx, h, w.long) == nil
}

// isUnknown reports whether err is no answer.
func isUnknown(err error) bool {
	return err != nil && !driver.Final(err) && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost)
}

// life returns the short or the long one.
func (w *worker) life() time.Duration {
	if w.rnd.IntN(2) == 0 {
		return w.long
	}
	return w.TTL
}

func (w *worker) pause(most time.Duration) { time.Sleep(time.Duration(w.rnd.Int64N(int64(most)))) }

// call bounds a call, and counts it.
func (w *worker) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.TTL/4+time.Duration(w.rnd.Int64N(int64(w.TTL/2))))
	defer cancel()
	w.made.Add(1)
	err := f(ctx)
	switch {
	case errors.Is(err, driver.ErrUnsupported): // a session's TTL can't become longer
	case driver.Final(err):
		w.fault("%s: %v", w.who, err)
	case isUnknown(err):
		w.unknown.Add(1)
	}
	return err
}

func (w *worker) acquire(ctx context.Context, h *hold) error {
	before, since := w.fence(h.Request.Name), time.Now()
	var g driver.Grant
	err := w.call(ctx, func(ctx context.Context) (err error) {
		g, err = w.b.Acquire(ctx, h.Request)
		return err
	})
	w.judge(h, "asked again", err)
	if err != nil {
		h.unknown = h.unknown || !errors.Is(err, driver.ErrHeld)
		return err
	}
	w.grants.Add(1)
	w.granted(h.Request.Name, w.who, before, g)
	b := &belief{name: h.Request.Name, mode: h.Mode, fence: g.Fence, began: w.began, lost: &h.lost}
	if h.belief != nil {
		w.checker.Leave(h.belief)
		b.until.Store(h.until.Load())
	}
	b.extend(since, g.TTL)
	h.belief = b
	w.checker.Enter(w.who, b)
	return nil
}

func (w *worker) renew(ctx context.Context, h *hold, ttl time.Duration) error {
	last := h.Hold
	last.TTL = ttl
	since := time.Now()
	err := w.call(ctx, func(ctx context.Context) error { return w.b.Renew(ctx, []driver.Hold{last})[0] })
	w.judge(h, "renewed", err)
	if err == nil {
		w.renewals.Add(1)
		h.extend(since, last.TTL)
		if other := w.checker.Beside(h.belief); other != "" && h.believed() && !w.Connected {
			w.fault("%s renewed with fence %d beside %s", w.who, h.fence, other)
		}
	}
	return err
}

// judge checks an answer against the holder's belief.
func (w *worker) judge(h *hold, what string, err error) {
	if !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
		return
	}
	if h.believed() && !w.Connected {
		w.fault("%s, with fence %d for %v more, %s: %v", w.who, h.fence, time.Duration(h.until.Load())-time.Since(w.began), what, err)
	}
	if h.belief != nil {
		h.lost.Store(true)
	}
}

// end ends a hold: mostly by a release, sometimes in silence.
func (w *worker) end(ctx context.Context, h *hold) {
	if w.caps.Session || w.rnd.IntN(4) > 0 {
		w.release(ctx, h)
	}
}

// release retries until it has an answer, or the hold has ended by itself.
func (w *worker) release(ctx context.Context, h *hold) {
	for since, first := time.Now(), true; ctx.Err() == nil; first = false {
		believed, later := h.believed(), h.belief != nil && !h.unknown && w.fence(h.Request.Name) > h.fence
		later = later && h.Mode.Alone() && !h.Queue // it may have had a place
		err := w.call(ctx, func(ctx context.Context) error { return w.b.Release(ctx, h.Hold) })
		switch {
		case first && errors.Is(err, driver.ErrLost) && believed && h.believed() && !w.Connected:
			w.fault("%s, with fence %d, released a hold that it believed in: %v", w.who, h.fence, err)
		case first && err == nil && later && w.caps.Fence:
			w.fault("%s released with fence %d when %d had been granted, without ErrLost", w.who, h.fence, w.fence(h.Request.Name))
		}
		if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
			return
		}
		if !w.caps.Session && time.Since(since) > w.long {
			return
		}
	}
}
