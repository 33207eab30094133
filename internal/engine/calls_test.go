package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// during counts the calls of the store.
func (c *conn) during(f func()) string {
	reads, swaps := c.reads, c.swaps
	f()
	return fmt.Sprintf("%d reads, %d swaps", c.reads-reads, c.swaps-swaps)
}

func TestCallsOfTheStore(t *testing.T) {
	s := newStore()
	ca, cb := s.connect(), s.connect()
	a, b := New(ca, Options{}), New(cb, Options{})
	must.Get(b.Inspect(t.Context(), "clock"))(t)
	long := func(r driver.Request) driver.Request { r.TTL = time.Hour; return r }
	mine, theirs := long(request(driver.Write)), long(queued(request(driver.Write)))
	acquire := func(b *Backend, r driver.Request) func() { return func() { _, _ = b.Acquire(t.Context(), r) } }
	release := func(b *Backend, r driver.Request) func() {
		return func() { must.OK(t, b.Release(t.Context(), r.Hold)) }
	}
	var holds []driver.Hold
	for i := range 1000 {
		r := long(request(driver.Exclusive))
		r.Name = fmt.Sprint("many ", i)
		must.Get(a.Acquire(t.Context(), r))(t)
		holds = append(holds, r.Hold)
	}
	for _, call := range []struct {
		what string
		c    *conn
		f    func()
		want string
	}{
		{"a lock", ca, acquire(a, mine), "0 reads, 1 swaps"},
		{"a refusal, of a lock that is not known", cb, acquire(b, theirs), "0 reads, 2 swaps"},
		{"an unlock", ca, release(a, mine), "0 reads, 1 swaps"},
		{"a turn in the queue that nothing has announced", cb, acquire(b, theirs), "1 reads, 1 swaps"},
		{"an unlock after a wait", cb, release(b, theirs), "0 reads, 1 swaps"},
		{"a lock that was another's meanwhile", ca, acquire(a, mine), "1 reads, 1 swaps"},
		{"a renewal of 1000", ca, func() { must.OK(t, errors.Join(a.Renew(t.Context(), holds)...)) }, "0 reads, 2 swaps"},
	} {
		expect.Equal(t, call.c.during(call.f), call.want, call.what)
	}
}

// Where the store does not tell what a reader's change has left, a reader beside others is two changes all the same: each change
// waits for all others of the text. One that is mistaken, since a writer has come or the others have gone, is as any other.
func TestReadersBesideReaders(t *testing.T) {
	s := newRoad()
	a, _ := s.open()
	b, cb := s.open()
	defer func() { must.OK(t, errors.Join(a.Close(), b.Close())) }()
	var held []driver.Request
	more := func() {
		r := request(driver.Read)
		must.Get(a.Acquire(t.Context(), r))(t)
		held = append(held, r)
	}
	pair := func() {
		r := request(driver.Read)
		more()
		must.Get(b.Acquire(t.Context(), r))(t)
		more()
		must.OK(t, b.Release(t.Context(), r.Hold))
	}
	pair()
	expect.Equal(t, cb.during(pair), "0 reads, 2 swaps", "beside readers")
	must.OK(t, b.Renew(t.Context(), []driver.Hold{held[0].Hold})[0])
	expect.Equal(t, cb.during(pair), "0 reads, 2 swaps", "after a renewal")
	for _, r := range held {
		must.OK(t, a.Release(t.Context(), r.Hold))
	}
	r, w := request(driver.Read), request(driver.Write)
	expect.Equal(t, cb.during(func() { must.Get(b.Acquire(t.Context(), r))(t) }), "0 reads, 1 swaps", "beside nobody any more")
	more()
	must.OK(t, b.Release(t.Context(), r.Hold))
	must.OK(t, a.Release(t.Context(), held[len(held)-1].Hold))
	must.Get(a.Acquire(t.Context(), w))(t)
	expect.Be(t, expect.Err(b.Acquire(t.Context(), r)), driver.ErrHeld, "behind a writer")
	must.OK(t, a.Release(t.Context(), w.Hold))
	must.Get(b.Acquire(t.Context(), w))(t)
}

// With the store's own clock a place is written once, although it is later when it is written than when that was decided.
func TestAPlaceIsWrittenOnce(t *testing.T) {
	s := newStore()
	var now atomic.Int64
	s.clock = func() int64 { return now.Add(1) }
	c := s.connect()
	b := New(c, Options{Clock: s.clock})
	must.Get(b.Acquire(t.Context(), request(driver.Exclusive)))(t)
	for _, w := range []driver.Request{request(driver.Exclusive), queued(request(driver.Exclusive))} {
		swaps := c.swaps
		expect.Be(t, expect.Err(b.Acquire(t.Context(), w)), driver.ErrHeld)
		if n := c.swaps - swaps; n > 1 {
			t.Errorf("%d changes", n)
		}
	}
}

// The store is told who waits.
func TestWhoWaits(t *testing.T) {
	s := newStore()
	ca, cb := s.connect(), s.connect()
	a, b := New(ca, Options{}), New(cb, Options{})
	holder, w := request(driver.Exclusive), queued(request(driver.Exclusive))
	must.Get(a.Acquire(t.Context(), holder))(t)
	expect.Be(t, expect.Err(b.Acquire(t.Context(), w)), driver.ErrHeld)
	defer must.Get(b.Watch(t.Context(), w))(t).Close()
	cb.waiter.Follow, cb.waiter.Poll = nil, nil
	expect.Equal(t, fmt.Sprint(cb.waiter), fmt.Sprint(Waiter{Name: w.Name, Owner: w.Owner, Address: b.address, Queue: true}))
}

// A waiter that is woken takes the lock with one change.
func TestWokenWaiter(t *testing.T) {
	s := newStore()
	c := s.connect()
	a, b := s.open(), New(c, Options{})
	mine, theirs := request(driver.Write), queued(request(driver.Write))
	mine.TTL, theirs.TTL = time.Hour, time.Hour
	must.Get(a.Acquire(t.Context(), mine))(t)
	expect.Be(t, expect.Err(b.Acquire(t.Context(), theirs)), driver.ErrHeld)
	w := must.Get(b.Watch(t.Context(), theirs))(t)
	must.OK(t, a.Release(t.Context(), mine.Hold))
	<-w.Ready
	expect.Equal(t, c.during(func() { must.Get(b.Acquire(t.Context(), theirs))(t) }), "0 reads, 1 swaps")
	w.Close()
	must.OK(t, errors.Join(a.Close(), b.Close()))
}

// Other programs may have written anything.
func TestTextOfAnotherProgram(t *testing.T) {
	s := newStore()
	b := s.open()
	good := "\nx" + driver.NewOwner() + " h7 1 9 0 a {}"
	for _, text := range []string{"x", "\n", "\nx", good + "\n", good[:40], strings.Replace(good, "\nx", "\ny", 1), strings.Replace(good, " h7", " g7", 1),
		strings.Replace(good, " h7", " h0", 1), strings.Replace(good, " 9 ", " -9 ", 1), strings.Replace(good, " 9 ", " 99999999999999999999 ", 1)} {
		s.kept["x"] = Kept{Version: 1, Text: text, Until: 1 << 60}
		r := request(driver.Exclusive)
		_, err := b.Acquire(t.Context(), r)
		expect.Be(t, err, driver.ErrInvalid, text)
		for _, err := range []error{b.Release(t.Context(), r.Hold), b.Renew(t.Context(), []driver.Hold{r.Hold})[0]} {
			if err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
				t.Errorf("%q: %v, want an unknown outcome", text, err)
			}
		}
	}
	expect.Be(t, expect.Err(b.Acquire(t.Context(), driver.Request{Hold: driver.Hold{Name: "x", Owner: "a b", Mode: driver.Exclusive, TTL: time.Second}})), driver.ErrInvalid)
}

// A claim is the same after it was written and read.
func FuzzLine(f *testing.F) {
	f.Add("\nx" + driver.NewOwner() + " h7 1 9 0 a {}\nc" + driver.NewOwner() + " p8 1 9 3  ")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := see(Seen{Version: 9, Text: text})
		if err != nil {
			return
		}
		again, _ := l.text()
		m, err := see(Seen{Version: 9, Text: again})
		if err != nil || fmt.Sprint(l.Claims) != fmt.Sprint(m.Claims) {
			t.Errorf("%q, then %q: %v", text, again, err)
		}
	})
}
