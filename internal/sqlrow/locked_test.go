package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

// Another program keeps a row locked. Its hold is unknown, and the same call renews all others.
func TestRenewBesideALockedRow(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			b := start(t, f)
			var list []driver.Hold
			for i := range 11 {
				r := asks(fmt.Sprint("lock ", i), mode)
				must.OK(t, taking(t, b, r)())
				list = append(list, r.Hold)
			}
			f.locked = map[Key]bool{KeyOf("lock 4"): true}
			time.Sleep(40 * time.Second)
			since := time.Now()
			for i, err := range b.Renew(t.Context(), list) {
				if i == 4 && (err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err)) {
					t.Errorf("%v: the locked row's hold: %v; want unknown", mode, err)
				} else if i != 4 && err != nil {
					t.Errorf("%v: hold %d: %v", mode, i, err)
				}
			}
			if took := time.Since(since); took > time.Second {
				t.Errorf("%v: the renewal took %v", mode, took)
			}
			time.Sleep(40 * time.Second)
			for i, h := range list {
				rival := asks(h.Name, driver.Write)
				if mode == driver.Exclusive {
					rival.Mode = mode
				}
				if err := taking(t, b, rival)(); i != 4 && !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%v: %s: %v; want held", mode, h.Name, err)
				}
			}
		})
	}
}

// A row is renewed although a statement of another process locks it for a moment.
func TestRenewOfARowLockedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		list := holds(t, b, 3)
		f.locked = map[Key]bool{KeyOf("lock 1"): true}
		time.AfterFunc(time.Millisecond, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.locked = nil
		})
		for i, err := range b.Renew(t.Context(), list) {
			if err != nil {
				t.Error(i, err)
			}
		}
	})
}

// A database answers fewer rows than were requested, as with a limit of the session. A row that is missing in an answer is
// no proof: of many holds exactly that one is lost which was broken.
func TestRenewWithALimitOfRows(t *testing.T) {
	f := newFake()
	b := start(t, f)
	list := holds(t, b, 2*MaxExtend)
	f.limit = 20
	must.OK(t, b.Release(t.Context(), list[7]))
	for i, err := range b.Renew(t.Context(), list) {
		if errors.Is(err, driver.ErrLost) != (i == 7) || i != 7 && err != nil {
			t.Errorf("hold %d: %v", i, err)
		}
	}
}

// A database that answers nothing at all has not said that there is no row.
func TestNoAnswerIsNoProof(t *testing.T) {
	f := newFake()
	b := start(t, f)
	list := holds(t, b, 2)
	f.silent = true
	f.locked = map[Key]bool{KeyOf("lock 0"): true, KeyOf("lock 1"): true}
	for i, err := range b.Renew(t.Context(), list) {
		if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
			t.Errorf("hold %d: %v; want unknown", i, err)
		}
	}
	shared := list[0]
	shared.Mode = driver.Read
	if err := b.Release(t.Context(), shared); err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
		t.Errorf("release: %v; want unknown", err)
	}
}

// A row that another program spoilt says nothing about a hold: only an attempt is refused for good.
func TestSpoiltRowIsUnknown(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Read} {
		f := newFake()
		b := start(t, f)
		r := asks("x", mode)
		must.OK(t, taking(t, b, r)())
		row := f.rows[KeyOf(r.Name)]
		row.Claims, row.Owner = []byte("{"), ""
		f.rows[KeyOf(r.Name)] = row
		unknown := func(what string, err error) {
			if err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
				t.Errorf("%v: %s: %v; want unknown", mode, what, err)
			}
		}
		unknown("renew", b.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		unknown("release", b.Release(t.Context(), r.Hold))
		expect.Be(t, taking(t, b, asks("x", driver.Write))(), driver.ErrInvalid, mode, "acquire")
	}
}

// A release overtakes an attempt that got no answer. It is no fact that the owner has nothing, until the attempt can't take
// effect any more.
func TestReleaseOvertakesAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		first := asks("x", driver.Exclusive)
		must.OK(t, taking(t, b, first)())
		must.OK(t, b.Release(t.Context(), first.Hold))
		r := asks("x", driver.Exclusive)
		f.interpose(func(what string) error {
			if what == "take" {
				return errors.New("no answer")
			}
			return nil
		})
		if err := taking(t, b, r)(); err == nil {
			t.Fatal("granted")
		}
		f.interpose(nil)
		if err := b.Release(t.Context(), r.Hold); err == nil || errors.Is(err, driver.ErrLost) || driver.Final(err) {
			t.Errorf("at once: %v; want unknown", err)
		}
		time.Sleep(2 * LateTime)
		expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "later")
	})
}

// An attempt that is given up before a statement of it is sent leaves nothing to wait for.
func TestAttemptsThatAreGivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		b := start(t, f)
		must.OK(t, taking(t, b, asks("x", driver.Read))())
		leave := must.Get(b.changing.Lock(t.Context(), KeyOf("x")))(t) // by another attempt of this process
		ctx, cancel := context.WithCancel(t.Context())
		waiting, late := asks("x", driver.Write), asks("x", driver.Write)
		answers := make(chan error, 2)
		go func() { answers <- expect.Err(b.Acquire(ctx, waiting)) }()
		synctest.Wait()
		cancel()
		answers <- expect.Err(b.Acquire(ctx, late))
		for range 2 {
			expect.Be(t, <-answers, driver.ErrUnsent, "an attempt")
		}
		leave()
		for _, r := range []driver.Request{waiting, late} {
			expect.Be(t, b.Release(t.Context(), r.Hold), driver.ErrLost, "a release")
		}
	})
}

// An attempt that has got a place, and then fails, has something to be released.
func TestAPlaceIsLeftByAFailedAttempt(t *testing.T) {
	refused := driver.Unsent(errors.New("refused"))
	for reads, failure := range map[int]error{1: refused, 2: refused, 3: driver.ErrInvalid} {
		f := newFake()
		b := start(t, f)
		holder, dead, r := asks("x", driver.Exclusive), asks("x", driver.Exclusive), asks("x", driver.Exclusive)
		dead.Queue, r.Queue = true, true
		must.OK(t, taking(t, b, holder)())
		must.Be(t, taking(t, b, dead)(), driver.ErrHeld)
		f.end("x", dead.Owner)
		must.OK(t, giving(t, b, holder)())
		f.interpose(func(what string) error {
			if what == "read" || what == "swap" {
				reads--
			}
			if reads == 0 {
				return failure
			}
			return nil
		})
		if err := taking(t, b, r)(); err == nil || errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
			t.Errorf("%v: %v; want unknown", failure, err)
		}
		f.interpose(nil)
		must.OK(t, giving(t, b, r)())
	}
}
