package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// locker is a lock that the tests wait for.
type locker interface {
	Lock(context.Context) (*distlock.Lease, error)
}

// waiter locks in a goroutine of its own; the lease comes through the channel.
func waiter(t testing.TB, ctx context.Context, m locker) <-chan *distlock.Lease {
	got := make(chan *distlock.Lease, 1)
	go func() {
		lease, err := m.Lock(ctx)
		if err != nil && ctx.Err() == nil {
			t.Errorf("Lock: %v", err)
		}
		got <- lease
	}()
	synctest.Wait()
	return got
}

func TestOneContenderPerProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		r := &rig{Backend: store.Connect()}
		holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		c := client(t, r, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var waiters []<-chan *distlock.Lease
		for range 100 {
			waiters = append(waiters, waiter(t, ctx, c.Mutex("x")))
		}
		time.Sleep(10 * time.Second)
		if n := r.acquires.Load(); n > 30 {
			t.Errorf("%d attempts by 100 waiters in 10 s, want at most 30", n)
		}
		cancel()
		for _, w := range waiters {
			if <-w != nil {
				t.Error("a cancelled waiter got the lock")
			}
		}
		mustUnlock(t, holder)
	})
}

func TestFirstComeFirstServedAndHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		m := c.Mutex("x")
		first := mustLock(t, m)
		var mu sync.Mutex
		var order []int
		var fences []uint64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				lease := mustLock(t, m)
				mu.Lock()
				order = append(order, i)
				fences = append(fences, lease.Fence())
				mu.Unlock()
				mustUnlock(t, lease)
			})
			synctest.Wait()
		}
		fences = append(fences, first.Fence())
		mustUnlock(t, first)
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("served in order %v", order)
		}
		for i, f := range fences {
			if i > 0 && f != fences[i-1]+1 {
				t.Fatalf("fences %v are not consecutive", fences)
			}
		}
		if a, l := r.acquires.Load(), r.releases.Load(); a != 1 || l != 1 {
			t.Errorf("%d acquires and %d releases for 21 turns, want 1 and 1", a, l)
		}
		free(t, c, "x")
	})
}

func TestHandOffBounds(t *testing.T) {
	bounds := map[string]struct {
		max    int
		window time.Duration
		hold   time.Duration
		opts   []distlock.LockOption
		want   int64 // acquires for 61 turns
	}{
		"by count":  {max: 9, window: time.Hour, want: 7},
		"by time":   {max: 1000, window: 10 * time.Millisecond, hold: 2 * time.Millisecond, want: 12},
		"never":     {max: -1, window: time.Hour, want: 61},
		"not this":  {max: 1000, window: time.Hour, opts: []distlock.LockOption{distlock.WithoutHandoff()}, want: 61},
		"unbounded": {max: 1000, window: time.Hour, want: 1},
	}
	for name, b := range bounds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig()
				m := client(t, r, &distlock.Options{HandoffMax: b.max, HandoffWindow: b.window}).Mutex("x", b.opts...)
				first := mustLock(t, m)
				var wg sync.WaitGroup
				for range 60 {
					wg.Go(func() {
						lease := mustLock(t, m)
						time.Sleep(b.hold)
						mustUnlock(t, lease)
					})
				}
				synctest.Wait()
				mustUnlock(t, first)
				wg.Wait()
				expect.Equal(t, r.acquires.Load(), b.want, "acquires for 61 turns")
			})
		})
	}
}

// Where grants carry one fence, a hand-off re-fences the hold by one call.
func TestHandOffByRefence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			req.Fences = 1
			return next(ctx, req)
		}
		c := client(t, r, &distlock.Options{HandoffMax: 9, HandoffWindow: time.Hour})
		m := c.Mutex("x")
		first := mustLock(t, m)
		last := first.Fence()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				lease := mustLock(t, m)
				if f := lease.Fence(); f <= last {
					t.Errorf("fence %d after %d", f, last)
				} else {
					last = f
				}
				mustUnlock(t, lease)
			})
		}
		synctest.Wait()
		mustUnlock(t, first)
		wg.Wait()
		if a, l := r.acquires.Load(), r.releases.Load(); a != 21 || l != 3 {
			t.Errorf("%d acquires and %d releases for 21 turns, want 21 and 3", a, l)
		}
		free(t, c, "x")
	})
}

// Hand-offs pass the places of other processes for no longer than the window. Then the lock goes round:
// each process has one place, however many callers wait in it.
func TestHandOffsPassTheQueueWithinTheWindow(t *testing.T) {
	for name, fair := range map[string][]distlock.LockOption{"process": nil, "fair": {distlock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore()
				a := client(t, store.Connect(), &distlock.Options{HandoffMax: 1000, HandoffWindow: 10 * time.Millisecond})
				b := client(t, store.Connect(), nil)
				var order []string
				var mu sync.Mutex
				var wg sync.WaitGroup
				turn := func(who string, m *distlock.Mutex) {
					wg.Go(func() {
						lease := mustLock(t, m)
						mu.Lock()
						order = append(order, who)
						mu.Unlock()
						time.Sleep(4 * time.Millisecond)
						mustUnlock(t, lease)
					})
					synctest.Wait()
				}
				first := mustLock(t, a.Mutex("x"))
				for range 5 {
					turn("a", a.Mutex("x"))
				}
				turn("b", b.Mutex("x", fair...))
				mustUnlock(t, first)
				wg.Wait()
				expect.Equal(t, strings.Join(order, ""), "aaabaa", "the lock went to")
				free(t, a, "x")
			})
		})
	}
}

// A hand-off uses the next fence of the span. A grant of one fence is acquired again for each hand-off,
// also while others wait in the queue of the backend.
func TestHandOffsUseTheSpan(t *testing.T) {
	for fences, want := range map[uint64]int64{1: 10, 4: 3, 1000: 1} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			r := &rig{Backend: store.Connect()}
			r.acquire = func(ctx context.Context, q driver.Request, next acquirer) (driver.Grant, error) {
				q.Fences = min(q.Fences, fences)
				return next(ctx, q)
			}
			m := client(t, r, &distlock.Options{HandoffMax: 1000, HandoffWindow: time.Hour}).Mutex("x")
			first := mustLock(t, m)
			var wg sync.WaitGroup
			for range 9 {
				wg.Go(func() {
					lease := mustLock(t, m)
					time.Sleep(time.Millisecond / 2)
					mustUnlock(t, lease)
				})
			}
			synctest.Wait()
			other := waiter(t, t.Context(), client(t, store.Connect(), nil).Mutex("x"))
			mustUnlock(t, first)
			wg.Wait()
			mustUnlock(t, <-other)
			if n := r.acquires.Load(); n != want {
				t.Errorf("spans of %d: %d attempts for 10 turns, want %d", fences, n, want)
			}
		})
	}
}

// A process has one place in the queue of the backend, and each caller with Fair has one of its own.
func TestPlacesInTheQueue(t *testing.T) {
	for want, option := range map[int][]distlock.LockOption{1: nil, 3: {distlock.Fair()}} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
			c := client(t, store.Connect(), nil)
			var waiting []<-chan *distlock.Lease
			for range 3 {
				waiting = append(waiting, waiter(t, t.Context(), c.Mutex("x", option...)))
			}
			synctest.Wait()
			info, err := c.Inspect(t.Context(), "x")
			if err != nil || len(info.Waiters) != want {
				t.Errorf("%d places, want %d, %v", len(info.Waiters), want, err)
			}
			mustUnlock(t, holder)
			for _, w := range waiting {
				mustUnlock(t, <-w)
			}
		})
	}
}

// A mode without a queue can't be fair. The others can.
func TestFairWhereAModeHasAQueue(t *testing.T) {
	r := newRig()
	r.caps = func(c driver.Caps) driver.Caps {
		c.QueuedModes = driver.Modes(driver.Exclusive)
		return c
	}
	c := client(t, r, nil)
	mustUnlock(t, mustLock(t, c.Mutex("x", distlock.Fair())))
	for _, try := range []func() (*distlock.Lease, error){
		func() (*distlock.Lease, error) { return c.RWMutex("y", distlock.Fair()).Lock(t.Context()) },
		func() (*distlock.Lease, error) { return c.RWMutex("y", distlock.Fair()).RLock(t.Context()) },
		func() (*distlock.Lease, error) { return c.Semaphore("z", 2, distlock.Fair()).Acquire(t.Context()) },
	} {
		if _, err := try(); !errors.Is(err, distlock.ErrUnsupported) || !strings.Contains(err.Error(), "fair") {
			t.Errorf("got %v, want ErrUnsupported", err)
		} else {
			t.Log(err)
		}
	}
}

// A waiter that gives up leaves nothing behind, and the others keep their places.
func TestGivingUpInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		c := client(t, store.Connect(), nil)
		holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		ctxs := make([]context.Context, 4)
		cancels := make([]context.CancelFunc, 4)
		got := make([]<-chan *distlock.Lease, 4)
		for i := range 4 {
			ctxs[i], cancels[i] = context.WithCancel(t.Context())
			defer cancels[i]()
			got[i] = waiter(t, ctxs[i], c.Mutex("x"))
		}
		cancels[0]() // the contender: the role passes on
		cancels[2]() // a waiter in the queue
		synctest.Wait()
		if <-got[0] != nil || <-got[2] != nil {
			t.Fatal("a cancelled waiter got the lock")
		}
		mustUnlock(t, holder)
		mustUnlock(t, <-got[1])
		mustUnlock(t, <-got[3])
		time.Sleep(time.Second)
		free(t, c, "x")
	})
}

// Leases of different kinds wait in one queue, but a hold of one kind is never handed off as another.
func TestNoHandOffBetweenUnequals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffWindow: time.Hour})
		kinds := [][]distlock.LockOption{
			nil,
			{distlock.WithTTL(time.Minute)},
			{distlock.WithoutRenewal()},
			{distlock.MaxHold(time.Hour)},
			{distlock.WithMeta(map[string]string{"job": "a"})},
			{distlock.WithoutHandoff()},
		}
		first := mustLock(t, c.Mutex("x"))
		var got []<-chan *distlock.Lease
		for _, opts := range kinds[1:] {
			got = append(got, waiter(t, t.Context(), c.Mutex("x", opts...)))
		}
		lease := first
		for _, g := range got {
			mustUnlock(t, lease)
			lease = <-g
		}
		mustUnlock(t, lease)
		if n := r.acquires.Load(); n != int64(len(kinds)) {
			t.Errorf("%d acquires for %d unequal leases", n, len(kinds))
		}
	})
}

// A loss while others wait in the queue: the lease ends first, then the next contends.
func TestLossPassesTheRoleOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.renew = blackHole
		c := client(t, r, nil)
		m := c.Mutex("x")
		lost := mustLock(t, m)
		ctx := lost.Context()
		got := waiter(t, t.Context(), m)
		start := time.Now()
		lease := <-got // Unlock was not called
		if ctx.Err() == nil {
			t.Error("the next holder came before the lost lease's context ended")
		}
		within(t, "next holder", time.Since(start), ttl, 2*time.Second)
		expect.Be(t, lost.Unlock(t.Context()), distlock.ErrLost, "Unlock")
		if lease.Err() != nil {
			t.Errorf("the late Unlock hit the successor: %v", lease.Err())
		}
		mustUnlock(t, lease)
	})
}

// A hold that is lost during a series of hand-offs ends with its current lease.
func TestLossDuringHandOffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, &distlock.Options{HandoffMax: 1000, HandoffWindow: time.Hour})
		m := c.Mutex("x")
		mustUnlock(t, func() *distlock.Lease {
			first := mustLock(t, m)
			second := waiter(t, t.Context(), m)
			mustUnlock(t, first)
			return <-second
		}())
		first := mustLock(t, m)
		second := waiter(t, t.Context(), m)
		third := waiter(t, t.Context(), m)
		mustUnlock(t, first)
		lease := <-second
		info, _ := c.Inspect(t.Context(), "x")
		must.OK(t, c.ForceUnlock(t.Context(), info))
		<-lease.Context().Done()
		after := <-third
		if after.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", after.Fence(), lease.Fence())
		}
		mustUnlock(t, after)
	})
}

// TestCancelRacesDelivery cancels waiters at the very moment at which a lease or the
// role is delivered to them. In real time, for the race detector.
func TestCancelRacesDelivery(t *testing.T) {
	for _, handoff := range []int{-1, 1000} {
		t.Run(fmt.Sprintf("handoff %d", handoff), func(t *testing.T) {
			c := client(t, newRig(), &distlock.Options{HandoffMax: handoff, HandoffWindow: time.Hour})
			m := c.Mutex("x")
			for range 300 {
				raceOnce(t, m)
			}
			mustUnlock(t, mustLock(t, m))
			free(t, c, "x")
		})
	}
}

func raceOnce(t *testing.T, m *distlock.Mutex) {
	lease := mustLock(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			mine := t.Context()
			if i%2 == 0 {
				mine = ctx
			}
			got, err := m.Lock(mine)
			if err == nil {
				mustUnlock(t, got)
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("Lock: %v", err)
			}
		})
	}
	wg.Go(cancel)
	mustUnlock(t, lease)
	wg.Wait()
}

func TestTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		c := client(t, r, nil)
		m := c.Mutex("x")
		lease := must.Get(m.TryLock(t.Context()))(t)
		_, err := m.TryLock(t.Context())
		held := (*distlock.HeldError)(nil)
		if !errors.Is(err, distlock.ErrHeld) || !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Fence != lease.Fence() {
			t.Errorf("second try: %#v", err)
		}
		expect.Equal(t, r.acquires.Load(), 1, "a try while the lock is held here called the backend")
		mustUnlock(t, lease)
		lease, err = m.TryLock(t.Context())
		expect.OK(t, err, "a try on a free lock")
		mustUnlock(t, lease)
	})
}

// A try while another's attempt is in flight gets an answer of its own.
func TestTryDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		slow := true
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			if slow {
				slow = false
				time.Sleep(time.Second)
			}
			return next(ctx, req)
		}
		m := client(t, r, nil).Mutex("x")
		slowOne := waiter(t, t.Context(), m)
		start := time.Now()
		lease := must.Get(m.TryLock(t.Context()))(t)
		within(t, "try", time.Since(start), 0, 0)
		time.Sleep(5 * time.Second)
		if len(slowOne) > 0 {
			t.Fatal("two at once")
		}
		mustUnlock(t, lease)
		mustUnlock(t, <-slowOne)
	})
}

// A try does not pass the waiters of this process.
func TestTryBehindALocalWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		c := client(t, store.Connect(), nil)
		got := waiter(t, t.Context(), c.Mutex("x"))
		expect.Be(t, expect.Err(c.Mutex("x").TryLock(t.Context())), distlock.ErrHeld, "try")
		mustUnlock(t, holder)
		mustUnlock(t, <-got)
	})
}

// Other processes get the lock even if one process locks again and again.
func TestOthersComeToTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		slow := func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			time.Sleep(100 * time.Microsecond)
			return next(ctx, req)
		}
		greedy := client(t, &rig{Backend: store.Connect(), acquire: slow}, nil).Mutex("x")
		other := client(t, &rig{Backend: store.Connect(), acquire: slow}, nil).Mutex("x")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					mustUnlock(t, mustLock(t, greedy))
				}
			}
		})
		for range 20 {
			start := time.Now()
			mustUnlock(t, mustLock(t, other))
			within(t, "the other's turn", time.Since(start), 0, 50*time.Millisecond)
			time.Sleep(5 * time.Millisecond)
		}
		close(stop)
		wg.Wait()
	})
}

// Of 16 processes that want a lock again and again, each gets its share, and a turn costs each two
// attempts: one that is refused and takes a place, and one that the release wakes.
func TestProcessesShareALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 16
		store := memlock.NewStore()
		var turns [processes]int
		var attempts int64
		var rigs [processes]*rig
		end := time.Now().Add(2 * time.Second)
		var wg sync.WaitGroup
		for i := range processes {
			rigs[i] = &rig{Backend: store.Connect()}
			m := client(t, rigs[i], nil).Mutex("x")
			wg.Go(func() {
				for time.Now().Before(end) {
					lease := mustLock(t, m)
					turns[i]++
					time.Sleep(time.Millisecond)
					mustUnlock(t, lease)
				}
			})
		}
		wg.Wait()
		all := 0
		for i, n := range turns {
			all += n
			attempts += rigs[i].acquires.Load()
			if mean := 2000 / processes; n < mean-2 || n > mean+2 {
				t.Errorf("turns: %v, want %d each", turns, mean)
			}
		}
		if perTurn := float64(attempts) / float64(all); perTurn > 2.1 {
			t.Errorf("%.2f attempts for each turn, want 2", perTurn)
		}
	})
}

// Processes that want a lock again and again and can only poll have their share too, and none waits for long.
func TestProcessesThatPollShareALock(t *testing.T) {
	for name, open := range map[string]func(r *rig) driver.Backend{
		"no Watch":          func(r *rig) driver.Backend { return struct{ driver.Backend }{r} },
		"a Watch of others": func(r *rig) driver.Backend { r.noWatch = true; return r },
	} {
		for _, processes := range []int{2, 4, 16} {
			t.Run(fmt.Sprint(name, " ", processes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { sharePolled(t, processes, open) })
			})
		}
	}
}

func sharePolled(t *testing.T, processes int, open func(r *rig) driver.Backend) {
	store, turns := memlock.NewStore(), make([]int, processes)
	var longest atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(30 * time.Second)
	for i := range processes {
		r := &rig{Backend: store.Connect()}
		r.caps = func(c driver.Caps) driver.Caps {
			c.Poll = 250 * time.Millisecond
			return withoutQueue(c)
		}
		r.acquire = func(ctx context.Context, req driver.Request, next acquirer) (driver.Grant, error) {
			time.Sleep(2 * time.Millisecond)
			return next(ctx, req)
		}
		r.release = func(ctx context.Context, h driver.Hold, next releaser) error {
			defer time.Sleep(time.Millisecond)
			return next(ctx, h)
		}
		m := client(t, open(r), nil).Mutex("x")
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				lease := mustLock(t, m)
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				turns[i]++
				time.Sleep(5 * time.Millisecond)
				mustUnlock(t, lease)
			}
		})
	}
	wg.Wait()
	most, fewest := slices.Max(turns), slices.Min(turns)
	if wait := time.Duration(longest.Load()); most > 3*fewest || wait > 3*time.Second {
		t.Errorf("%d to %d turns, and one waited for %v", fewest, most, wait)
	}
}

// A reader that had to wait for writers lately takes its place at once, as a writer does, and makes no attempt before that. Once one gets in at
// once, those of a process go side by side again.
func TestReadersTakePlacesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		var rigs [10]*rig
		var locks [10]*distlock.RWMutex
		var wg sync.WaitGroup
		var turns atomic.Int64
		end := time.Now().Add(time.Second)
		for i := range rigs {
			rigs[i] = &rig{Backend: store.Connect()}
			locks[i] = client(t, rigs[i], nil).RWMutex("x")
			wg.Go(func() {
				lock := locks[i].RLock
				if i < 2 {
					lock = locks[i].Lock
				}
				for time.Now().Before(end) {
					lease, err := lock(t.Context())
					must.OK(t, err)
					turns.Add(1)
					time.Sleep(time.Millisecond)
					mustUnlock(t, lease)
				}
			})
		}
		wg.Wait()
		attempts := int64(0)
		for _, r := range rigs {
			attempts += r.acquires.Load()
		}
		if perTurn := float64(attempts) / float64(turns.Load()); perTurn > 2.1 {
			t.Errorf("%.2f attempts for each turn, want 2", perTurn)
		}

		last := len(rigs) - 1
		read := func() {
			lease, err := locks[last].RLock(t.Context())
			must.OK(t, err)
			mustUnlock(t, lease)
		}
		read()
		rigs[last].acquire = func(ctx context.Context, r driver.Request, next acquirer) (driver.Grant, error) {
			time.Sleep(time.Millisecond)
			return next(ctx, r)
		}
		start := time.Now()
		for range 10 {
			wg.Go(read)
		}
		wg.Wait()
		expect.Equal(t, time.Since(start), time.Millisecond, "10 readers of a process")
	})
}

// A process that dies while it waits holds up the others no longer than its turn.
func TestDeadProcessLosesItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		dead := &rig{Backend: store.Connect()}
		holder := mustLock(t, client(t, store.Connect(), nil).Mutex("x"))
		gone := waiter(t, t.Context(), client(t, dead, nil).Mutex("x"))
		next := waiter(t, t.Context(), client(t, store.Connect(), nil).Mutex("x"))
		dead.set(func(r *rig) {
			r.acquire = func(ctx context.Context, _ driver.Request, _ acquirer) (driver.Grant, error) {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
		})
		mustUnlock(t, holder)
		start := time.Now()
		lease := <-next
		if took := time.Since(start); took < driver.TurnLife/2 || took > 2*driver.TurnLife {
			t.Errorf("the next waiter got the lock after %v, want about %v", took, driver.TurnLife)
		}
		mustUnlock(t, lease)
		dead.set(func(r *rig) { r.acquire = nil })
		mustUnlock(t, <-gone)
	})
}
