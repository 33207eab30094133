package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// road is a store in which waiters follow who is ahead of them, as MySQL's rows are: it tells no text that others have changed
// too, and wakes waiters before the change shows to who only reads.
type road struct {
	*store
	mu      sync.Mutex
	numbers map[string]int64 // of notifications, by backend
	changed chan struct{}    // closed with the next notification
	shown   map[string]Kept  // what reads still see
	row     sync.Mutex       // of writers
}

func newRoad() *road {
	return &road{store: newStore(), numbers: map[string]int64{}, changed: make(chan struct{}), shown: map[string]Kept{}}
}

// follower is a connection to a road.
type follower struct {
	*conn
	road  *road
	own   string
	ended chan struct{}
	once  sync.Once
}

func (s *road) open() (*Backend, *follower) {
	f := &follower{conn: s.connect(), road: s, ended: make(chan struct{})}
	return New(f, Options{Package: "engine", Name: "road", Address: f.address}), f
}

func (f *follower) address(own string, _ time.Duration) string {
	f.road.mu.Lock()
	defer f.road.mu.Unlock()
	f.own = own
	return fmt.Sprint(own, "/", f.road.numbers[own])
}

func (f *follower) notify() {
	f.road.mu.Lock()
	defer f.road.mu.Unlock()
	f.road.numbers[f.own]++
	close(f.road.changed)
	f.road.changed = make(chan struct{})
}

func (f *follower) Read(ctx context.Context, names []string) ([]Seen, error) {
	list, err := f.conn.Read(ctx, names)
	f.road.mu.Lock()
	defer f.road.mu.Unlock()
	for i, name := range names {
		if was, late := f.road.shown[name]; late {
			list[i].Version, list[i].Text, list[i].Void = was.Version, was.Text, was.Void
		}
	}
	return list, err
}

func (f *follower) Swap(ctx context.Context, changes []Change) []Outcome {
	c := &changes[0]
	f.road.row.Lock()
	defer f.road.row.Unlock()
	f.store.mu.Lock()
	was := f.kept[c.Name]
	f.store.mu.Unlock()
	list := f.conn.Swap(ctx, changes)
	for i := range list {
		out := &list[i]
		if !out.Done || !out.Other {
			continue
		}
		if changes[i].New == "" {
			out.Waits = strings.Contains(out.Seen.Text, " p")
		}
		out.Untold, out.Seen.Text = true, ""
	}
	switch {
	case len(changes) > 1 || !list[0].Done:
	case c.New == "" && (list[0].Waits || len(c.Wake) > 0):
		f.show(c.Name, &was)
		f.notify()
		time.Sleep(time.Millisecond)
		f.show(c.Name, nil)
	case len(c.Wake) > 0:
		f.notify()
	}
	return list
}

// show lets reads see what was there before a change; nil: no longer.
func (f *follower) show(name string, was *Kept) {
	f.road.mu.Lock()
	defer f.road.mu.Unlock()
	if delete(f.road.shown, name); was != nil {
		f.road.shown[name] = *was
	}
}

func (f *follower) Wake(context.Context, []Wake) { f.notify() }

func (f *follower) Listen(_ context.Context, w Waiter, heard func(end string)) (stop func(), err error) {
	if !w.Queue {
		return nil, driver.ErrSkip
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		next := map[string]int64{}
		for address := ""; ; {
			own, at, _ := strings.Cut(address, "/")
			var number int64
			_, _ = fmt.Sscan(at, &number)
			f.road.mu.Lock()
			is, changed := f.road.numbers[own], f.road.changed
			f.road.mu.Unlock()
			if number = max(number, next[own]); own != "" && is > number {
				next[own] = is
				heard(EndOf(w.Owner))
				continue
			}
			select {
			case address = <-w.Follow:
			case <-changed:
			case <-ctx.Done():
				return
			case <-f.ended:
				return
			}
		}
	}()
	return cancel, nil
}

func (f *follower) Close() error {
	f.once.Do(func() { close(f.ended) })
	return f.conn.Close()
}

func TestConformanceOfFollowers(t *testing.T) {
	s := newRoad()
	drivertest.Run(t, drivertest.Harness{Open: func(context.Context) (driver.Backend, error) {
		b, _ := s.open()
		return b, nil
	}})
}

// A waiter follows the claim that it must wait for last, and polls if any of several may end first.
func TestWhomAWaiterFollows(t *testing.T) {
	s := newRoad()
	a, _ := s.open()
	b, _ := s.open()
	c, _ := s.open()
	for _, test := range []struct {
		mode  driver.Mode
		polls bool
	}{{driver.Write, false}, {driver.Counted, true}} {
		one, two, last := request(driver.Read), request(driver.Read), queued(request(test.mode))
		if test.mode == driver.Counted {
			one.Mode, two.Mode = test.mode, test.mode
		}
		one.Name, two.Name, last.Name = test.mode.String(), test.mode.String(), test.mode.String()
		must.Get(a.Acquire(t.Context(), one))(t)
		must.Get(b.Acquire(t.Context(), two))(t)
		expect.Be(t, expect.Err(c.Acquire(t.Context(), last)), driver.ErrHeld)
		w := must.Get(c.Watch(t.Context(), last))(t)
		expect.Be(t, expect.Err(c.Acquire(t.Context(), last)), driver.ErrHeld)
		c.waiters.mu.Lock()
		for w := range c.waiters.byName[last.Name] {
			expect.Equal(t, w.polls, test.polls, test.mode)
		}
		c.waiters.mu.Unlock()
		must.OK(t, b.Release(t.Context(), two.Hold))
		must.OK(t, a.Release(t.Context(), one.Hold))
		<-w.Ready
		w.Close()
	}
}

// waitedFor returns a backend that has a lock, and one that waits for it.
func waitedFor(t *testing.T) (a, b *Backend, f *follower, mine, theirs driver.Request) {
	t.Helper()
	s := newRoad()
	a, f = s.open()
	b, _ = s.open()
	mine, theirs = request(driver.Exclusive), queued(request(driver.Exclusive))
	must.Get(a.Acquire(t.Context(), mine))(t)
	expect.Be(t, expect.Err(b.Acquire(t.Context(), theirs)), driver.ErrHeld)
	return a, b, f, mine, theirs
}

// A backend that has released a lock for which others wait goes behind them at once.
func TestBehindThoseWhoWait(t *testing.T) {
	a, b, f, mine, theirs := waitedFor(t)
	must.OK(t, a.Release(t.Context(), mine.Hold))
	must.Get(b.Acquire(t.Context(), theirs))(t)
	next := queued(request(driver.Exclusive))
	expect.Equal(t, f.during(func() { expect.Be(t, expect.Err(a.Acquire(t.Context(), next)), driver.ErrHeld) }), "1 reads, 1 swaps")
}

// A renewal names the address that the backend has by then.
func TestRenewalNamesTheAddress(t *testing.T) {
	s := newRoad()
	a, f := s.open()
	one, two := request(driver.Read), request(driver.Read)
	one.Meta = map[string]string{"who": "me"}
	must.Get(a.Acquire(t.Context(), one))(t)
	must.Get(a.Acquire(t.Context(), two))(t)
	f.notify()
	must.OK(t, a.Renew(t.Context(), []driver.Hold{one.Hold})[0])
	if text := s.kept["x"].Text; !strings.Contains(text, a.address+"/1 {") {
		t.Error(text)
	}
	must.OK(t, a.Release(t.Context(), one.Hold))
}

// A waiter that is behind nobody any more is woken, whoever has seen that: it follows nobody from then on.
func TestWhoFollowsNobodyIsWoken(t *testing.T) {
	_, b, _, mine, theirs := waitedFor(t)
	w := must.Get(b.Watch(t.Context(), theirs))(t)
	defer w.Close()
	expect.Be(t, expect.Err(b.Acquire(t.Context(), theirs)), driver.ErrHeld)
	l := must.Get(b.read(t.Context(), theirs.Name))(t)
	l.Remove(mine.Owner)
	b.followed(theirs.Name, l)
	<-w.Ready
}
