package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/backend/quorum"
	"github.com/distlock/distlock/driver"
)

func TestNewRefuses(t *testing.T) {
	one, two := memlock.New(), memlock.New()
	for name, c := range map[string]struct {
		members []driver.Backend
		opts    *quorum.Options
		says    string
	}{
		"nobody":         {nil, nil, "no members"},
		"nil":            {[]driver.Backend{one, nil}, nil, "member 2 is nil"},
		"one twice":      {[]driver.Backend{one, two, one}, nil, "twice"},
		"timeout":        {[]driver.Backend{one}, &quorum.Options{MemberTimeout: -1}, "MemberTimeout"},
		"drift":          {[]driver.Backend{one}, &quorum.Options{Drift: 0.6}, "Drift"},
		"backward drift": {[]driver.Backend{one}, &quorum.Options{Drift: -0.1}, "Drift"},
	} {
		_, err := quorum.New(c.members, c.opts)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCaps(t *testing.T) {
	b, _ := newCluster(t, 3).process()
	c := b.Caps()
	if c.Modes != driver.Modes(driver.Exclusive, driver.Read, driver.Write) || c.Queueing != driver.QueueNever || !c.Fence || !c.Floor || !c.Downgrade || c.Session {
		t.Errorf("%+v", c)
	}
	_, err := b.Acquire(t.Context(), request(driver.Counted))
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "3 users could each win 2 of 3") {
		t.Errorf("a semaphore: %v", err)
	}
	r := request(driver.Exclusive)
	r.Queue = true
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a line: %v", err)
	}
}

// A hold without a majority is lost, and its remaining votes are released.
func TestLostIsAFact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5)
		b, w := c.process()
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		for i := range 2 {
			c.stores[i].Connect().Release(t.Context(), r.Hold)
		}
		w.kill(2)
		isUnknown(t, "two said yes, two no", b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		w.restore()
		b.Inspect(t.Context(), r.Name) // which shows that all are there again
		synctest.Wait()
		c.stores[2].Connect().Release(t.Context(), r.Hold)
		if err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]; !errors.Is(err, driver.ErrLost) {
			t.Errorf("held by at most two of five: %v", err)
		}
		c.leavesNothing(t, r.Hold)
	})
}

// A release with too few answers reports neither that the Owner held nor that it did not: the
// members that answered ErrLost may have granted a successor together with the silent ones.
func TestReleaseOfWhichTooFewKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b, w := c.process()
		r := request(driver.Exclusive)
		take(t, b, r)
		synctest.Wait()
		for i := range 2 {
			c.stores[i].Connect().Release(t.Context(), r.Hold)
		}
		w.kill(0)
		successor := request(driver.Exclusive)
		for i := range 2 {
			take(t, c.stores[i].Connect(), successor)
		}
		isUnknown(t, "one released, one had nothing, one is silent", b.Release(t.Context(), r.Hold))
		if err := b.Release(t.Context(), r.Hold); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released again: %v; want ErrLost", err)
		}
	})
}

// A batch does not wait for a slow member.
func TestRenewDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b, w := c.process()
		var holds []driver.Hold
		for i := range 100 {
			r := request(driver.Exclusive)
			r.Name = fmt.Sprint(i)
			take(t, b, r)
			holds = append(holds, r.Hold)
		}
		synctest.Wait()
		calls := w.calls.Load()
		w.slow(1, 500*time.Millisecond)
		began := time.Now()
		for i, err := range b.Renew(t.Context(), holds) {
			if err != nil {
				t.Errorf("hold %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the renewal took %v", took)
		}
		time.Sleep(time.Second)
		if n := w.calls.Load() - calls; n != 3 {
			t.Errorf("it made %d calls, want one for each member", n)
		}
	})
}

// Each member gets one call at a time for an Owner, although calls do not wait for slow members.
func TestCallsForAnOwnerAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		b, w := c.process()
		w.slow(1, 300*time.Millisecond)
		r := request(driver.Exclusive)
		for range 3 {
			take(t, b, r)
			renewed := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
			if err := b.Release(t.Context(), r.Hold); err != nil || renewed != nil {
				t.Errorf("renewed: %v, released: %v", renewed, err)
			}
		}
		time.Sleep(10 * time.Second)
		if n := w.most.Load(); n != 1 {
			t.Errorf("%d calls at once for one Owner at one member", n)
		}
		if n := c.votes(r.Hold); n != 0 {
			t.Errorf("%d votes are left", n)
		}
	})
}

// OnLost is called when the members that have not called it are no majority.
func TestOnLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, w := newCluster(t, 3).process()
		var told atomic.Int32
		r := request(driver.Exclusive)
		r.OnLost = func() { told.Add(1) }
		take(t, b, r)
		take(t, b, r)
		synctest.Wait()
		for i, want := range []int32{0, 1, 1} {
			w.lose(i, r.Owner)
			if n := told.Load(); n != want {
				t.Errorf("told %d times when %d of 3 members had lost it, want %d", n, i+1, want)
			}
		}
	})
}

// Members that can't inspect or push are left out.
func TestOptionalCalls(t *testing.T) {
	var bare []driver.Backend
	for range 3 {
		bare = append(bare, struct{ driver.Backend }{memlock.New()})
	}
	b, err := quorum.New(bare, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.Watch(t.Context(), request(driver.Exclusive))
	if !errors.Is(err, driver.ErrSkip) {
		t.Errorf("watch: %v", err)
	}
	if _, err = b.Inspect(t.Context(), "lock"); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("inspect: %v", err)
	}
	if err = b.List(t.Context(), "", func(string) bool { return true }); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("list: %v", err)
	}
}

// Split votes are resolved: one of many concurrent attempts wins.
func TestSplitVote(t *testing.T) {
	c := newCluster(t, 5)
	for round := range 40 {
		won := make(chan error, 5)
		start := make(chan struct{})
		for i := range 5 {
			b, w := c.process()
			for m := range 5 {
				if m != i {
					w.slow(m, time.Duration(1+(m+i)%3)*time.Millisecond)
				}
			}
			r := request(driver.Exclusive)
			r.Name = fmt.Sprint(round)
			go func() {
				<-start
				_, err := b.Acquire(context.Background(), r)
				won <- err
			}()
		}
		close(start)
		wins := 0
		for range 5 {
			if err := <-won; err == nil {
				wins++
			} else if !errors.Is(err, driver.ErrHeld) {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if wins != 1 {
			t.Errorf("round %d: %d won", round, wins)
		}
	}
}
