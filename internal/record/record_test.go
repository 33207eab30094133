package record

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// plain is a store of one record, which counts calls.
type plain struct {
	now           Record
	reads, writes int
	fail          func(write func() (Written, error)) (Written, error) // of the next write
	unread        error
}

func (p *plain) Read(context.Context, string) (Record, error) {
	p.reads++
	return p.now, p.unread
}

func (p *plain) Write(_ context.Context, _ string, r Record) (Written, error) {
	p.writes++
	write := func() (Written, error) {
		if r.Version != p.now.Version {
			return Written{}, ErrConflict
		}
		r.Version = fmt.Sprint(p.writes)
		p.now = r
		return Written{Version: r.Version}, nil
	}
	if fail := p.fail; fail != nil {
		p.fail = nil
		return fail(write)
	}
	return write()
}

func (p *plain) List(context.Context, string, func(string, Record) bool) error { return nil }

func (p *plain) Close() error { return nil }

func connect(s Store) *Backend { return New(s, driver.Caps{Name: "plain", Floor: true}) }

func request() driver.Request {
	return driver.Request{Hold: driver.Hold{Name: "x", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Minute}, Fences: 1}
}

// A client that released a lock last takes it again with one write, and releases it with another.
func TestPairOfWrites(t *testing.T) {
	s := &plain{}
	b := connect(s)
	for i := range 10 {
		r := request()
		must.Get(b.Acquire(t.Context(), r))(t)
		must.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		must.OK(t, b.Release(t.Context(), r.Hold))
		if s.reads != 1 || s.writes != 3*(i+1) {
			t.Errorf("%d reads and %d writes for %d times three calls", s.reads, s.writes, i+1)
		}
	}
}

var errReset = errors.New("connection reset")

// A write that took effect is a grant, whatever the answer.
func TestAnswerOfAWriteThatTookEffect(t *testing.T) {
	for what, answer := range map[string]error{
		"none": errReset, "that of its second copy": ErrConflict, "a refusal of its second copy": Refused(errors.New("403")),
	} {
		s := &plain{}
		b, r := connect(s), request()
		s.fail = func(write func() (Written, error)) (Written, error) {
			write()
			return Written{}, answer
		}
		g, err := b.Acquire(t.Context(), r)
		if err != nil || g.Fence != 1 {
			t.Errorf("%s: %+v, %v", what, g, err)
		}
		s.fail = func(write func() (Written, error)) (Written, error) {
			write()
			return Written{}, answer
		}
		expect.OK(t, b.Release(t.Context(), r.Hold), what)
	}
}

// A write that was refused is unsent if the record shows that it was not taken before, in a first copy.
func TestRefusedWrite(t *testing.T) {
	s := &plain{}
	b, r := connect(s), request()
	refuse := func(func() (Written, error)) (Written, error) { return Written{}, Refused(errReset) }
	s.fail = refuse
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrUnsent, "Acquire")
	must.Get(b.Acquire(t.Context(), r))(t)
	s.fail = refuse
	expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrUnsent, "Renew")
	s.fail, s.unread = refuse, Refused(errReset)
	expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrUnsent, "Release of one who may not even read")
	s.fail, s.unread = refuse, errReset
	if err := b.Release(t.Context(), r.Hold); !errors.Is(err, errReset) || errors.Is(err, driver.ErrUnsent) {
		t.Errorf("Release, and nobody knows what became of it: %v", err)
	}
}

// A release whose answer is lost is not taken for a loss, if another has the lock when the record is read.
func TestReleaseMeetsTheNextHolder(t *testing.T) {
	s := &plain{}
	b, r, next := connect(s), request(), request()
	must.Get(b.Acquire(t.Context(), r))(t)
	s.fail = func(write func() (Written, error)) (Written, error) {
		write()
		must.Get(connect(s).Acquire(t.Context(), next))(t)
		return Written{}, errReset
	}
	if err := b.Release(t.Context(), r.Hold); !errors.Is(err, errReset) || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "another Release")
	if s.now.Holder != next.Owner {
		t.Errorf("%q holds", s.now.Holder)
	}
}

// A client that has just come goes by the age that the store says, and one that has watched for longer by that.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &plain{}
		r := request()
		must.Get(connect(s).Acquire(t.Context(), r))(t)
		for _, c := range []struct{ age, watched, left time.Duration }{
			{0, 0, time.Minute}, {20 * time.Second, 0, 40 * time.Second}, {20 * time.Second, 30 * time.Second, 10 * time.Second}, {time.Minute, 0, 0},
		} {
			b := New(s, driver.Caps{Name: "plain", Floor: true, Late: time.Second})
			s.now.Age = c.age
			must.Get(b.Inspect(t.Context(), "x"))(t)
			time.Sleep(c.watched)
			s.now.Age = max(0, c.age-time.Second) // another host of the store
			info := must.Get(b.Inspect(t.Context(), "x"))(t)
			left := time.Duration(0)
			for _, h := range info.Holders {
				left = h.Left
			}
			if late := left - c.left; late < 0 || late > time.Second {
				t.Errorf("%+v: left %v", c, left)
			}
		}
		s.now.Age = time.Hour
		must.Get(connect(s).Acquire(t.Context(), request()))(t)
	})
}

// Times of a proxy's clock are not taken for the store's.
func TestOneClock(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, c := range []struct {
		read    time.Time
		elapsed time.Duration
		want    bool
	}{
		{at, 0, true}, {at.Add(time.Second), 0, true}, {at.Add(-time.Second), 0, true}, {at.Add(time.Minute), time.Minute, true},
		{at.Add(-2 * time.Second), time.Minute, false}, {at.Add(time.Minute), time.Second, false}, {at.Add(3 * time.Second), 0, false},
	} {
		expect.Equal(t, OneClock(at, c.read, c.elapsed), c.want, fmt.Sprintf("%+v", c))
	}
	expect.Equal(t, OneClock(time.Time{}, at, time.Hour), false, "a time that is not said")
	expect.Equal(t, Age(time.Time{}, at), 0, "age of what is not said")
	expect.Equal(t, Age(at, at.Add(-time.Hour)), 0, "age of what will be")
	expect.Equal(t, Age(at, at.Add(time.Minute)), time.Minute-time.Second-apart, "age")
}

// An attempt that arrives after its Owner was released takes nothing.
func TestLateAttemptAfterItsRelease(t *testing.T) {
	s := &plain{}
	b, r := connect(s), request()
	var late func() (Written, error)
	s.fail = func(write func() (Written, error)) (Written, error) {
		late = write
		return Written{}, errReset
	}
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), errReset, "Acquire")
	expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "Release")
	if _, err := late(); !errors.Is(err, ErrConflict) || s.now.Holder != "" {
		t.Errorf("the attempt arrived late: %v; then %q holds", err, s.now.Holder)
	}
	writes := s.writes
	expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "another Release")
	if s.writes != writes {
		t.Error("a Release of nothing writes")
	}
}

// A hold that a client has seen end may be taken by the one that has seen it, at once and without a read.
func TestWatchedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &plain{}
		r, next := request(), request()
		must.Get(connect(s).Acquire(t.Context(), r))(t)
		b := connect(s)
		held, _ := errors.AsType[*driver.HeldError](expect.Err(b.Acquire(t.Context(), next)))
		if held == nil || held.Retry < r.TTL || held.Retry > r.TTL+r.TTL/50 {
			t.Fatalf("refused by %+v", held)
		}
		expect.Equal(t, held.Holders[0].Left, -1, "the end that others are promised, who may not watch for as long")
		time.Sleep(held.Retry - 1)
		expect.Be(t, expect.Err(b.Acquire(t.Context(), next)), driver.ErrHeld, "a nanosecond too early")
		time.Sleep(time.Nanosecond)
		reads := s.reads
		g := must.Get(b.Acquire(t.Context(), next))(t)
		if g.Fence != 2 || s.reads != reads {
			t.Errorf("fence %d, %d more reads", g.Fence, s.reads-reads)
		}
	})
}

// pushing is a plain store that can push.
type pushing struct {
	plain
	changed func(Record)
}

func (p *pushing) Watch(_ context.Context, _ string, changed func(Record)) (func(), error) {
	p.changed = changed
	return func() {}, nil
}

// A waiter sees by its watch that the holder lives, without a read for each renewal, and has the lock a TTL after the last one.
func TestWatchedRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pushing{}
		b, r, next := Pushing{connect(s)}, request(), request()
		held := Record{Version: "0", Stamp: 10, Holder: r.Owner, TTL: time.Minute}
		s.now = held
		refusal, _ := errors.AsType[*driver.HeldError](expect.Err(b.Acquire(t.Context(), next)))
		w := must.Get(b.Watch(t.Context(), next))(t)
		tell := func(r Record, want bool, what string) {
			t.Helper()
			s.changed(r)
			signalled := false
			select {
			case <-w.Ready:
				signalled = true
			default:
			}
			expect.Equal(t, signalled, want, what)
		}
		tell(held, false, "the record as it was read")
		for range 5 {
			time.Sleep(time.Minute / 3)
			held.Version, held.Stamp = held.Version+"1", held.Stamp+1
			s.now = held
			tell(held, false, "a renewal")
		}
		tell(Record{Version: "older", Stamp: 9}, true, "an older version, which was free")
		reads := s.reads
		expect.Be(t, expect.Err(b.Acquire(t.Context(), next)), driver.ErrHeld, "after the renewals")
		expect.Equal(t, s.reads, reads+1, "reads: an answer comes from the store")
		time.Sleep(refusal.Retry - 1)
		expect.Be(t, expect.Err(b.Acquire(t.Context(), next)), driver.ErrHeld, "before the last renewal has ended")
		reads = s.reads
		time.Sleep(time.Nanosecond)
		must.Get(b.Acquire(t.Context(), next))(t)
		expect.Equal(t, s.reads, reads, "reads of an attempt that knows that the lock is free")
		tell(Record{}, true, "what may have been deleted")
	})
}

// What another program wrote is kept as far as a lock of it allows: it is shown as foreign, excludes, ends, and is released
// by force.
func TestForeignHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &plain{now: Record{Version: "v", Holder: "host_1", Foreign: true, TTL: 15 * time.Second, Counter: 7, Rest: "labels"}}
		b := connect(s)
		held, _ := errors.AsType[*driver.HeldError](expect.Err(b.Acquire(t.Context(), request())))
		if held == nil || !held.Holders[0].Foreign {
			t.Fatalf("refused by %+v", held)
		}
		info := must.Get(b.Inspect(t.Context(), "x"))(t)
		if len(info.Holders) != 1 || !info.Holders[0].Foreign || info.Holders[0].Owner != "host_1" {
			t.Errorf("shown as %+v", info)
		}
		time.Sleep(held.Retry)
		r := request()
		g := must.Get(b.Acquire(t.Context(), r))(t)
		if g.Fence != 8 || s.now.Foreign || s.now.Rest != "labels" {
			t.Errorf("fence %d, record %+v", g.Fence, s.now)
		}
		s.now.Holder, s.now.Version, s.now.Foreign = "host_2", "w", true
		expect.OK(t, b.Release(t.Context(), driver.Hold{Name: "x", Owner: "host_2"}), "Release by force")
		if s.now.Holder != "" || s.now.Counter != 8 {
			t.Errorf("released: %+v", s.now)
		}
	})
}

// A hold of another program that says nothing of its end has none.
func TestHoldWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := connect(&plain{now: Record{Version: "v", Holder: "host_1", Foreign: true}})
		for range 3 {
			expect.Be(t, expect.Err(b.Acquire(t.Context(), request())), driver.ErrHeld, "Acquire")
			time.Sleep(1000 * time.Hour)
		}
	})
}

// A record that was deleted is made anew with fences above what the store says when it is found missing.
func TestDeletedRecord(t *testing.T) {
	s := &plain{}
	b := connect(s)
	for _, clock := range []uint64{1000, 2000, 3000} {
		r := request()
		s.now = Record{Counter: clock}
		if g := must.Get(b.Acquire(t.Context(), r))(t); g.Fence != clock+1 {
			t.Errorf("fence %d after %d", g.Fence, clock)
		}
		must.OK(t, b.Release(t.Context(), r.Hold))
		s.now = Record{Counter: clock + 500}
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "Release of nothing, which sees that it is missing")
	}
}

func TestFencesEnd(t *testing.T) {
	s := &plain{now: Record{Version: "v", Counter: math.MaxInt64 - 3}}
	b, r := connect(s), request()
	if g := must.Get(b.Acquire(t.Context(), r))(t); g.Last() >= 1<<63 {
		t.Errorf("fence %d", g.Last())
	}
	r.Fences = 1 << 40
	if g := must.Get(connect(&plain{}).Acquire(t.Context(), r))(t); g.Fences > 1<<12 {
		t.Errorf("%d fences for one grant, so that a counter that is lost begins behind them", g.Fences)
	}
	r.Fences = 5
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrInvalid, "an attempt when the fences are used up")
	for _, floor := range []uint64{math.MaxInt64, math.MaxUint64} {
		r.Floor = floor
		expect.Be(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrInvalid, "a floor that is no fence")
	}
}

// A store is read at once, or as often as its Gap allows; one that is busy is read less often, for a while.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		take := func(p *Pace) time.Duration {
			t.Helper()
			began := time.Now()
			for range Burst + 100 {
				must.OK(t, p.turn(t.Context()))
			}
			return time.Since(began)
		}
		p := &Pace{}
		expect.Equal(t, take(p), 0, "without a Gap")
		p.Answered(true)
		if took := take(p); took < 90*MinGap {
			t.Errorf("of a busy store: %v", took)
		}
		for range 200 {
			p.Answered(false)
		}
		if took := take(p); took > 2*MinGap {
			t.Errorf("of a store that was busy: %v", took)
		}
		if took := take(&Pace{Gap: MinGap}); took < 90*MinGap || took > 100*MinGap {
			t.Errorf("with a Gap: %v", took)
		}
	})
}

// Memory of names is bounded, and what was used last is kept.
func TestRecent(t *testing.T) {
	var m recent[int]
	m.put("kept", 1)
	for i := range 10 * generation {
		m.put(fmt.Sprint(i), i)
		if _, ok := m.get("kept"); !ok {
			t.Fatalf("forgotten after %d others", i)
		}
	}
	if n := len(m.young) + len(m.old); n > 2*generation {
		t.Errorf("%d entries", n)
	}
	if _, ok := m.get("0"); ok {
		t.Error("the first one is still there")
	}
	m.drop("kept")
	if _, ok := m.get("kept"); ok {
		t.Error("dropped and still there")
	}
}
