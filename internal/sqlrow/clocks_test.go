package sqlrow

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Rows are read by one server's clock and written by another's. No held lock is granted, and a hold
// lives for its TTL by the clock that decides on the next grant.
func TestReaderHasAnotherClock(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Write, driver.Read, driver.Counted} {
		for _, skew := range []time.Duration{8 * time.Second, -8 * time.Second} {
			t.Run(mode.String()+skew.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { readElsewhere(t, mode, skew) })
			})
		}
	}
}

func readElsewhere(t *testing.T, mode driver.Mode, skew time.Duration) {
	f := newFake()
	b := start(t, f)
	first, rival := asks("x", mode), asks("x", driver.Write)
	if mode == driver.Exclusive || mode == driver.Counted {
		rival.Mode = mode
	}
	first.TTL, first.Limit, rival.Limit = 5*time.Second, 1, 1
	must.OK(t, taking(t, b, first)())
	f.reader = skew
	renewed := renewing(t, b, first)()
	if mode.Alone() && renewed != nil {
		t.Errorf("a renewal by one statement: %v", renewed)
	}
	anchor := time.Now()
	time.Sleep(4 * time.Second)
	if err := taking(t, b, rival)(); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("%v before the end of the hold another client: %v", time.Second, err)
	}
	// A reported renewal lasts for its TTL, whatever the reader's clock.
	f.reader = 0
	time.Sleep(time.Until(anchor.Add(first.TTL - time.Millisecond)))
	if err := taking(t, b, rival)(); renewed == nil && !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the renewed hold has ended early, the next: %v", err)
	}
}

// The first grant of a name is an Insert. A grant that the reader's clock dates back would end early.
func TestFirstGrantByAnotherClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		f.reader = -8 * time.Second
		r := asks("x", driver.Read)
		expect.Be(t, taking(t, b, r)(), driver.ErrHeld, "a reader whose clock is behind")
		f.reader = 0
		expect.OK(t, taking(t, b, r)())
	})
}
