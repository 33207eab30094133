package distlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
)

var stormWorlds = flag.Int("storm.worlds", 1, "how many worlds TestStorm makes for each kind of backend")

// stormKind is a kind of backend.
type stormKind struct {
	session  bool
	queueing driver.Queueing
	spans    bool
}

func (k stormKind) set(c *driver.Caps) {
	c.Session, c.Queueing = k.session, k.queueing
}

// TestStorm: everything that locks can do, at once, on backends of every kind that lose answers and
// where requests land late. No lock has two holders, fences rise, a holder is notified of a
// revocation once, and in the end nothing is left.
func TestStorm(t *testing.T) {
	for _, session := range []bool{false, true} {
		for _, queueing := range []driver.Queueing{driver.QueueNever, driver.QueueOnRequest, driver.QueueAlways} {
			for _, spans := range []bool{false, true} {
				kind := stormKind{session, queueing, spans}
				t.Run(fmt.Sprintf("session %v, queueing %v, spans %v", session, queueing, spans), func(t *testing.T) {
					for range *stormWorlds {
						for _, bad := range storm(t, kind, "") {
							t.Error(bad)
						}
					}
				})
			}
		}
	}
}

// TestStormFindsShortenedLives: the storm sees two holders where a renewal or a repeated attempt
// sets a life, so that a late one shortens a later extension.
func TestStormFindsShortenedLives(t *testing.T) {
	for _, sets := range []string{"renewals", "attempts"} {
		t.Run(sets, func(t *testing.T) {
			for range 1000 {
				if strings.Contains(strings.Join(storm(t, stormKind{}, sets), "\n"), "besides") {
					return
				}
			}
			t.Error("no storm in 1000 had two holders")
		})
	}
}

// storm makes one world and returns its violations. sets, if not empty, breaks
// the driver's contract.
func storm(t *testing.T, kind stormKind, sets string) []string {
	w := &world{store: memlock.NewStore()}
	synctest.Test(t, func(t *testing.T) { w.run(t, kind, sets) })
	return w.wrong
}

// world is shared by the backends of one storm.
type world struct {
	store *memlock.Store

	mu    sync.Mutex
	wrong []string
}

func (w *world) errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) run(t *testing.T, kind stormKind, sets string) {
	b := &belief{world: w, t: t, held: map[*distlock.Lease]bool{}, asked: map[*distlock.Lease]bool{}, fences: map[string]uint64{}}
	var wg sync.WaitGroup
	for range 2 {
		backend := newStormy(w, kind.set)
		backend.spans = kind.spans
		backend.sets = sets
		c := must.Get(distlock.New(backend, &distlock.Options{TTL: 3 * time.Second, HandoffWindow: 5 * time.Millisecond}))(t)
		defer c.Close() // it may tell of a release without an answer
		mutexes := []*distlock.Mutex{c.Mutex("m", distlock.Revocable(b.noteAsked)), c.Mutex("m")}
		for range 8 {
			wg.Go(func() {
				for range 20 {
					b.one(c, mutexes)
				}
			})
		}
	}
	start := time.Now()
	wg.Wait()
	if d := time.Since(start); d > endless/2 {
		w.errorf("it took %v: a lock was held without a holder", d)
	}
	// An attempt that lands after its release ends with its TTL.
	time.Sleep(5 * time.Minute)
	quiet := client(t, w.store.Connect(), nil)
	for name := range quiet.List(t.Context(), "") {
		if info, err := quiet.Inspect(t.Context(), name); err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			w.errorf("%s is not free: %+v, %v", name, info, err)
		}
	}
	if b.grants < 100 {
		w.errorf("%d grants only", b.grants)
	}
}

// belief records the holds in which their holders trust.
type belief struct {
	*world
	t testing.TB

	mu     sync.Mutex
	held   map[*distlock.Lease]bool
	asked  map[*distlock.Lease]bool
	fences map[string]uint64
	grants int
}

func (b *belief) noteAsked(l *distlock.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked[l] {
		b.errorf("a lease was notified twice")
	}
	b.asked[l] = true
}

func (b *belief) enter(l *distlock.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.Err() != nil {
		return
	}
	beside := 0
	for o := range b.held {
		if o.Name() == l.Name() && o.Err() == nil && (l.Mode() != distlock.Read || o.Mode() != distlock.Read) {
			beside++
		}
	}
	if beside > 1 || beside == 1 && l.Mode() != distlock.Counted {
		b.errorf("%d hold %s besides %v", beside, l.Name(), l.Mode())
	}
	if last := b.fences[l.Name()]; l.Mode().Alone() && l.Fence() <= last {
		b.errorf("fence %d of %s after %d", l.Fence(), l.Name(), last)
	}
	b.fences[l.Name()] = max(b.fences[l.Name()], l.Fence())
	b.held[l] = true
	b.grants++
}

func (b *belief) leave(l *distlock.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, l)
}

// one takes a turn of some kind.
func (b *belief) one(c *distlock.Client, mutexes []*distlock.Mutex) {
	ctx, cancel := b.t.Context(), context.CancelFunc(func() {})
	if rand.N(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, rand.N(100*time.Millisecond))
	}
	defer cancel()
	opts := b.options(c)
	m := mutexes[rand.N(len(mutexes))]
	switch rand.N(11) {
	case 0, 1:
		b.hold(m.Lock(ctx))
	case 2:
		b.hold(m.TryLock(ctx))
	case 3:
		b.hold(c.Mutex("m", opts...).Lock(ctx))
	case 4:
		b.downgrade(c.RWMutex("rw", opts...).Lock(ctx))
	case 5:
		b.hold(c.RWMutex("rw", opts...).RLock(ctx))
	case 6:
		b.hold(c.Semaphore("s", 2, opts...).Acquire(ctx))
	case 7:
		b.all(distlock.Multi(m, c.Mutex("n", opts...), c.Semaphore("s", 2), c.RWMutex("rw")).TryLock(ctx))
	case 8:
		b.all(distlock.Multi(m, c.Mutex("n", opts...)).Lock(ctx))
	case 9:
		b.ask(ctx)
	case 10:
		b.forget(c.Mutex("m", distlock.WithoutRenewal()).Lock(ctx))
	}
}

func (b *belief) options(c *distlock.Client) (opts []distlock.LockOption) {
	all := []distlock.LockOption{
		distlock.WithoutRenewal(), distlock.MinHold(rand.N(200 * time.Millisecond)), distlock.Reentrant(),
		distlock.MaxHold(200*time.Millisecond + rand.N(2*time.Second)), distlock.Revocable(b.noteAsked),
	}
	if c.Caps().Queueing != driver.QueueNever {
		all = append(all, distlock.Fair())
	}
	for _, o := range all {
		if rand.N(4) == 0 {
			opts = append(opts, o)
		}
	}
	return opts
}

func (b *belief) hold(l *distlock.Lease, err error) {
	if b.failed(err) {
		return
	}
	b.enter(l)
	b.work(l)
	b.leave(l)
	b.failed(l.Unlock(b.t.Context()))
}

// forget leaves a lock to its TTL or MaxHold.
func (b *belief) forget(l *distlock.Lease, err error) {
	if b.failed(err) {
		return
	}
	b.enter(l)
	<-l.Context().Done()
	b.leave(l)
}

func (b *belief) downgrade(l *distlock.Lease, err error) {
	if b.failed(err) {
		return
	}
	b.enter(l)
	b.work(l)
	b.leave(l)
	if b.failed(l.Downgrade(b.t.Context())) {
		b.failed(l.Unlock(b.t.Context()))
		return
	}
	b.hold(l, nil)
}

func (b *belief) all(m *distlock.MultiLease, err error) {
	if b.failed(err) {
		return
	}
	for _, l := range m.Leases() {
		b.enter(l)
	}
	b.work(m.Leases()[0])
	for _, l := range m.Leases() {
		b.leave(l)
	}
	b.failed(m.Unlock(b.t.Context()))
}

// failed reports whether there is an error. It must be one that a storm can cause.
func (b *belief) failed(err error) bool {
	for _, kind := range []error{distlock.ErrHeld, distlock.ErrLost, distlock.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	if err != nil {
		b.errorf("%v", err)
	}
	return err != nil
}

func (b *belief) work(l *distlock.Lease) {
	switch rand.N(12) {
	case 0:
		time.Sleep(rand.N(8 * time.Second))
	case 1:
		_ = l.Extend(b.t.Context(), rand.N(4*time.Second)+1) // beyond MaxHold it is refused
	case 2:
		b.workLonger(l)
	default:
		time.Sleep(rand.N(3 * time.Millisecond))
	}
}

// workLonger extends a lease again and again, for longer than the TTL, so that late requests land
// after it.
func (b *belief) workLonger(l *distlock.Lease) {
	for range 2 {
		time.Sleep(rand.N(5 * time.Second))
		_ = l.Extend(b.t.Context(), rand.N(30*time.Second)+1)
	}
	time.Sleep(rand.N(15 * time.Second))
}

// ask requests the release from all holders.
func (b *belief) ask(ctx context.Context) {
	conn := b.store.Connect()
	for _, name := range []string{"m", "n", "rw", "s"} {
		info, _ := conn.Inspect(ctx, name)
		for _, h := range info.Holders {
			_ = conn.Revoke(ctx, driver.Hold{Name: name, Owner: h.Owner, Mode: h.Mode}) // some have not agreed
		}
	}
}
