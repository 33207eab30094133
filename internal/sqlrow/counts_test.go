package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func start(t *testing.T, f *fake) *Backend {
	t.Helper()
	b := New(f, Options{Package: "test", Name: "test"})
	t.Cleanup(func() { b.Close() })
	return b
}

func asks(name string, mode driver.Mode) driver.Request {
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: mode, TTL: time.Minute},
		Limit:  3,
		Fences: 1,
	}
}

func taking(t *testing.T, b *Backend, r driver.Request) func() error {
	return func() error { _, err := b.Acquire(t.Context(), r); return err }
}

func giving(t *testing.T, b *Backend, r driver.Request) func() error {
	return func() error { return b.Release(t.Context(), r.Hold) }
}

func renewing(t *testing.T, b *Backend, r driver.Request) func() error {
	return func() error { return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] }
}

// Each call sends the expected statements.
func TestStatementsOfEachCall(t *testing.T) {
	f := newFake()
	b := start(t, f)
	x, y := asks("mutex", driver.Exclusive), asks("mutex", driver.Exclusive)
	queued := asks("mutex", driver.Exclusive)
	queued.Queue = true
	reader, beside, writer := asks("rw", driver.Read), asks("rw", driver.Read), asks("rw", driver.Write)
	for _, call := range []struct {
		what string
		do   func() error
		err  error
		want map[string]int
	}{
		{"a mutex that never was", taking(t, b, x), nil, map[string]int{"take": 1, "read": 1, "insert": 1}},
		{"a mutex held", taking(t, b, y), driver.ErrHeld, map[string]int{"take": 1, "read": 1}},
		{"again", taking(t, b, x), nil, map[string]int{"take": 1}},
		{"its renewal", renewing(t, b, x), nil, map[string]int{"extend": 1}},
		{"its release", giving(t, b, x), nil, map[string]int{"free": 1}},
		{"a free mutex", taking(t, b, y), nil, map[string]int{"take": 1}},
		{"a place in the queue", taking(t, b, queued), driver.ErrHeld, map[string]int{"take": 1, "contend": 1, "read": 1}},
		{"a release before a queue", giving(t, b, y), nil, map[string]int{"free": 1}},
		{"the first in the queue", taking(t, b, queued), nil, map[string]int{"take": 1, "contend": 1}},
		{"its release", giving(t, b, queued), nil, map[string]int{"free": 1}},
		{"a mutex after a queue", taking(t, b, x), nil, map[string]int{"take": 1}},
		{"a reader", taking(t, b, reader), nil, map[string]int{"contend": 1, "read": 1, "insert": 1}},
		{"another reader", taking(t, b, beside), nil, map[string]int{"contend": 1}},
		{"its release", giving(t, b, beside), nil, map[string]int{"drop": 1}},
		{"a writer refused", taking(t, b, writer), driver.ErrHeld, map[string]int{"take": 1, "read": 1}},
		{"a reader's renewal", renewing(t, b, reader), nil, map[string]int{"read": 1, "swap": 1}},
		{"a reader's release", giving(t, b, reader), nil, map[string]int{"drop": 1}},
		{"a release of nothing", giving(t, b, reader), driver.ErrLost, map[string]int{"drop": 1, "read": 1}},
		{"a writer's release of nothing", giving(t, b, writer), driver.ErrLost, map[string]int{"free": 1, "drop": 1, "read": 1}},
		{"a renewal of nothing", renewing(t, b, writer), driver.ErrLost, map[string]int{"extend": 1, "read": 1}},
	} {
		f.counted()
		must.Be(t, call.do(), call.err, call.what)
		if got := f.counted(); !reflect.DeepEqual(got, call.want) {
			t.Errorf("%s takes %v; want %v", call.what, got, call.want)
		}
	}
}

// holds acquires n locks.
func holds(t *testing.T, b *Backend, n int) []driver.Hold {
	t.Helper()
	list := make([]driver.Hold, n)
	for i := range list {
		r := asks(fmt.Sprint("lock ", i), driver.Exclusive)
		must.Get(b.Acquire(t.Context(), r))(t)
		list[i] = r.Hold
	}
	return list
}

// One statement renews 256 holds. Lost holds cost one more.
func TestStatementsOfManyRenewals(t *testing.T) {
	f := newFake()
	b := start(t, f)
	list := holds(t, b, 5000)
	f.counted()
	for i, err := range b.Renew(t.Context(), list) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if got, want := f.counted(), (map[string]int{"extend": 20}); !maps.Equal(got, want) {
		t.Errorf("5000 renewals take %v; want %v", got, want)
	}
	list[7].Owner = driver.NewOwner()
	for i, err := range b.Renew(t.Context(), list) {
		if errors.Is(err, driver.ErrLost) != (i == 7) {
			t.Errorf("hold %d: %v", i, err)
		}
	}
	if got, want := f.counted(), (map[string]int{"extend": 20, "read": 1}); !maps.Equal(got, want) {
		t.Errorf("5000 renewals, one of them lost, take %v; want %v", got, want)
	}
}

// Holds of several TTLs and floors, and two of one name, are each renewed with their own terms.
func TestRenewalsOfAllSorts(t *testing.T) {
	f := newFake()
	b := start(t, f)
	list := holds(t, b, 6)
	list[1].TTL = time.Hour
	list[2].Floor = 1 << 60
	list[3].Owner = driver.NewOwner()
	list = append(list, list[0], list[4])
	list[6].Owner = driver.NewOwner()
	list[5].TTL = -1
	want := map[int]error{3: driver.ErrLost, 6: driver.ErrLost, 5: driver.ErrInvalid}
	for i, err := range b.Renew(t.Context(), list) {
		if !errors.Is(err, want[i]) {
			t.Errorf("hold %d: %v; want %v", i, err, want[i])
		}
	}
	now := time.Now().UnixMicro()
	if left := f.rows[KeyOf("lock 1")].Until - now; left < (59 * time.Minute).Microseconds() {
		t.Errorf("a renewal for an hour lasts %d µs", left)
	}
	again := driver.Request{Hold: list[2], Fences: 1}
	if g, err := b.Acquire(t.Context(), again); err != nil || g.Fence <= 1<<60 {
		t.Errorf("after a floor of %d the fence is %d, %v", 1<<60, g.Fence, err)
	}
}

// Sixteen processes share one row. A slower process retries, and none is refused.
func TestReadersCompete(t *testing.T) { synctest.Test(t, readersCompete) }

func readersCompete(t *testing.T) {
	f := newFake()
	// All statements take a moment, so that all processes look before one writes.
	f.interpose(func(string) error { time.Sleep(time.Millisecond); return nil })
	var wg sync.WaitGroup
	for range 16 {
		b := start(t, f)
		wg.Go(func() {
			for range 5 {
				r := asks("rw", driver.Read)
				for _, step := range []func() error{taking(t, b, r), renewing(t, b, r), giving(t, b, r)} {
					expect.OK(t, step())
				}
			}
		})
	}
	wg.Wait()
	t.Logf("80 readers came, renewed and went: %v", f.counted())
}

// neverRests changes the row before each swap.
func neverRests(f *fake) func(what string) error {
	return func(what string) error {
		if what == "swap" {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.put(f.rows[KeyOf("rw")])
		}
		return nil
	}
}

// A row that changes all the time ends an attempt in a refusal. A hold in it is renewed nevertheless, alone or among others, and
// others that change with it.
func TestRowThatNeverRests(t *testing.T) {
	f := newFake()
	b := start(t, f)
	r := asks("rw", driver.Read)
	must.OK(t, taking(t, b, r)())
	f.interpose(neverRests(f))
	defer watching(t, b, asks("rw", driver.Write)).Close() // then a try reads first
	held := (*driver.HeldError)(nil)
	if err := taking(t, b, asks("rw", driver.Read))(); !errors.As(err, &held) || held.Retry <= 0 {
		t.Errorf("acquire: %v; want held, with a time to try again", err)
	}
	other, lost := asks("rw", driver.Read), asks("rw", driver.Read)
	f.interpose(nil)
	must.OK(t, taking(t, b, other)())
	f.interpose(neverRests(f))
	r.TTL, r.Floor, other.TTL = time.Hour, 1<<62, 2*time.Hour
	for _, holds := range [][]driver.Hold{{r.Hold}, {r.Hold, lost.Hold, other.Hold}} {
		for i, err := range b.Renew(t.Context(), holds) {
			expect.Be(t, err, []error{nil, driver.ErrLost, nil}[i], "hold", i, "of", len(holds))
		}
	}
	i := must.Get(b.Inspect(t.Context(), "rw"))(t)
	if len(i.Holders) != 2 || min(i.Holders[0].Left, i.Holders[1].Left) < 50*time.Minute || f.rows[KeyOf("rw")].Number < int64(r.Floor>>claims.SpanBits) {
		t.Errorf("%+v, number %d", i, f.rows[KeyOf("rw")].Number)
	}
}

// A row that is locked and does not change is waited for by a renewal of one hold only.
func TestRenewOfOneSharedHoldWaits(t *testing.T) {
	f := newFake()
	b := start(t, f)
	r, other := asks("rw", driver.Read), asks("other", driver.Read)
	must.OK(t, taking(t, b, r)())
	must.OK(t, taking(t, b, other)())
	f.locked = map[Key]bool{KeyOf("rw"): true}
	for _, holds := range [][]driver.Hold{{r.Hold}, {r.Hold, other.Hold}} {
		f.counted()
		expect.Be(t, b.Renew(t.Context(), holds)[0], errBusy)
		expect.Equal(t, f.counted()["rewrite"], 2-len(holds), "waits of a renewal of", len(holds))
	}
}

// To the holder itself a row that never rests is no refusal: a downgrade would end a living lease.
func TestDowngradeOfARowThatNeverRests(t *testing.T) {
	f := newFake()
	b := start(t, f)
	r := asks("rw", driver.Write)
	must.OK(t, taking(t, b, r)())
	f.interpose(neverRests(f))
	r.Mode = driver.Read
	if err := taking(t, b, r)(); !errors.Is(err, errBusy) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v; want an unknown outcome", err)
	}
	f.interpose(nil)
	expect.OK(t, taking(t, b, r)())
}

// A call that waits for its turn, or between two attempts, ends with its context.
func TestLaneEndsWithContext(t *testing.T) {
	f := newFake()
	b := start(t, f)
	reached, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.interpose(func(string) error {
		once.Do(func() { close(reached); <-leave })
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		expect.OK(t, taking(t, b, asks("rw", driver.Read))())
	})
	<-reached
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Be(t, expect.Err(b.Acquire(ctx, asks("rw", driver.Read))), context.Canceled, "acquire")
	close(leave)
	wg.Wait()
	if n := b.changing.Len(); n != 0 {
		t.Errorf("%d entries for calls in progress are left", n)
	}
}

// A try beside a waiter of its process writes nothing for the first place, whose turn that waiter's attempts limit.
func TestTryLeavesTheTurnToWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := startWith(t, f, newTestNotifier())
		holder, first, second, reader := asks("lock", driver.Write), asks("lock", driver.Write), asks("lock", driver.Write), asks("lock", driver.Read)
		first.Queue, second.Queue = true, true
		must.Get(b.Acquire(t.Context(), holder))(t)
		w := watching(t, b, second)
		defer w.Close()
		expect.Be(t, taking(t, b, first)(), driver.ErrHeld)
		expect.Be(t, taking(t, b, second)(), driver.ErrHeld)
		must.OK(t, giving(t, b, holder)())
		f.counted()
		expect.Be(t, taking(t, b, reader)(), driver.ErrHeld)
		if got := f.counted(); got["swap"] != 0 {
			t.Errorf("a try takes %v", got)
		}
		expect.Be(t, taking(t, b, second)(), driver.ErrHeld)
		if got := f.counted(); got["swap"] != 1 {
			t.Errorf("a waiter's attempt takes %v: the first place's turn has no end", got)
		}
	})
}

// A try limits the first place's turn once its process has no waiter any more, or only one without a place.
func TestTryLimitsTheTurnWithoutWaiters(t *testing.T) {
	for _, gone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			b := startWith(t, f, newTestNotifier())
			holder, first, other, reader := asks("lock", driver.Write), asks("lock", driver.Write), asks("lock", driver.Write), asks("lock", driver.Read)
			first.Queue, other.Queue = true, gone
			must.Get(b.Acquire(t.Context(), holder))(t)
			expect.Be(t, taking(t, b, first)(), driver.ErrHeld)
			w := watching(t, b, other)
			defer w.Close()
			synctest.Wait()
			if gone {
				w.Close()
			}
			must.OK(t, giving(t, b, holder)())
			f.counted()
			expect.Be(t, taking(t, b, reader)(), driver.ErrHeld)
			if got := f.counted(); got["swap"] != 1 {
				t.Errorf("a try takes %v: the first place's turn has no end", got)
			}
		})
	}
}
