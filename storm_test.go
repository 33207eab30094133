package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// TestStorm: everything that locks can do, at once, on backends of every kind that lose
// answers. Nobody meets anybody, fences rise, who is asked is told once, and in the end
// nothing is left.
func TestStorm(t *testing.T) {
	for _, session := range []bool{false, true} {
		for _, fixed := range []bool{false, session} {
			for _, line := range []driver.Line{driver.Never, driver.OnRequest, driver.Always} {
				for _, life := range []time.Duration{0, time.Millisecond} {
					caps := func(c *driver.Caps) { c.Session, c.Fixed, c.Line, c.SpanLife = session, fixed, line, life }
					t.Run(fmt.Sprintf("session %v, fixed %v, line %v, spans %v", session, fixed, line, life), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { storm(t, caps) })
					})
				}
			}
		}
	}
}

func storm(t *testing.T, caps func(*driver.Caps)) {
	store := memlock.NewStore()
	b := &belief{t: t, store: store, held: map[*distlock.Lease]bool{}, told: map[*distlock.Lease]bool{}, fences: map[string]uint64{}}
	var wg sync.WaitGroup
	for range 2 {
		c, err := distlock.New(newStormy(t, store, caps), &distlock.Options{TTL: 3 * time.Second, HandoffWindow: 5 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // it may tell of a release without an answer
		mutexes := []*distlock.Mutex{c.Mutex("m", distlock.Revocable(b.tell)), c.Mutex("m")}
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
		t.Errorf("it took %v: something was held by nobody", d)
	}
	time.Sleep(5 * time.Minute)
	quiet := client(t, store.Connect(), nil)
	for name := range quiet.List(t.Context(), "") {
		free(t, quiet, name)
	}
	if b.grants < 100 {
		t.Errorf("%d grants only", b.grants)
	}
}

// belief is who holds what, as the holders believe.
type belief struct {
	t     testing.TB
	store *memlock.Store

	mu     sync.Mutex
	held   map[*distlock.Lease]bool
	told   map[*distlock.Lease]bool
	fences map[string]uint64
	grants int
}

func (b *belief) tell(l *distlock.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told[l] {
		b.t.Error("a lease was told twice")
	}
	b.told[l] = true
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
		b.t.Errorf("%d hold %s besides %v", beside, l.Name(), l.Mode())
	}
	if last := b.fences[l.Name()]; l.Mode().Alone() && l.Fence() <= last {
		b.t.Errorf("fence %d of %s after %d", l.Fence(), l.Name(), last)
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
		distlock.MaxHold(200*time.Millisecond + rand.N(2*time.Second)), distlock.Revocable(b.tell),
	}
	if c.Caps().Line != driver.Never {
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

// forget leaves a lock to its end.
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

// failed reports whether there is an error, which must be one of those that storms bring.
func (b *belief) failed(err error) bool {
	for _, kind := range []error{distlock.ErrHeld, distlock.ErrLost, distlock.ErrUnavailable, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	if err != nil {
		b.t.Error(err)
	}
	return err != nil
}

func (b *belief) work(l *distlock.Lease) {
	switch rand.N(12) {
	case 0:
		time.Sleep(rand.N(8 * time.Second))
	case 1:
		_ = l.Extend(b.t.Context(), rand.N(4*time.Second)+1) // beyond MaxHold it is refused
	default:
		time.Sleep(rand.N(3 * time.Millisecond))
	}
}

// ask asks whoever holds.
func (b *belief) ask(ctx context.Context) {
	conn := b.store.Connect()
	for _, name := range []string{"m", "n", "rw", "s"} {
		info, _ := conn.Inspect(ctx, name)
		for _, h := range info.Holders {
			_ = conn.Revoke(ctx, driver.Hold{Name: name, Owner: h.Owner, Mode: h.Mode}) // some have not agreed
		}
	}
}
