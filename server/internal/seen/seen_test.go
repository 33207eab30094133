package seen

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

// take notes a grant after a wait.
func (s *Log) take(name, owner string, fence uint64, waited time.Duration) driver.Hold {
	h := driver.Hold{Name: name, Owner: owner, Mode: driver.Exclusive, TTL: time.Minute}
	s.Granted(driver.Request{Hold: h, Meta: map[string]string{"program": "p", "pid": "1", "host": "h"}},
		driver.Grant{Fence: fence, Fences: 1, TTL: h.TTL}, time.Now().Add(-waited), time.Now())
	return h
}

// The end of each hold is counted, whether anybody looks at the page or not.
func TestSeenEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		var ends []string
		s.OnEnd = func(_ string, sp *Record) { ends = append(ends, fmt.Sprint(sp.Fence, sp.End)) }
		s.take("x", "a", 1, 0)
		time.Sleep(2 * time.Minute)
		s.take("x", "b", 2, 0) // a's TTL is over
		leader := s.take("leader", "c", 3, 0)
		for i := range 2 * mostNames {
			s.take(fmt.Sprint(i), "d", 4, 0)
			if i%(mostNames/2) == 0 {
				s.Renewed(leader, time.Now())
			}
		}
		s.Released(leader)
		s.take("y", "e", 5, 0)
		time.Sleep(2 * time.Minute)
		ends = slices.DeleteFunc(ends, func(e string) bool { return strings.HasPrefix(e, "4") })
		s.Expire(time.Now())
		ends = slices.DeleteFunc(ends, func(e string) bool { return strings.HasPrefix(e, "4") })
		if want := []string{"1end.expired", "3end.released", "5end.expired"}; !slices.Equal(slices.Sorted(slices.Values(ends)), want) {
			t.Errorf("got the ends %q, want %q", ends, want)
		}
	})
}

func TestSeenUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New()
		time.Sleep(stepTime - time.Duration(time.Now().UnixNano())%stepTime) // begin with a step
		for i := range 30 {                                                  // held for one second of two
			h := s.take("x", fmt.Sprint(i), uint64(i+1), time.Duration(i)*time.Millisecond)
			time.Sleep(time.Second)
			s.Released(h)
			time.Sleep(time.Second)
		}
		_, u := s.History("x")
		if u.Share < .4 || u.Share > .5 || u.Now < .35 || u.Now > .45 || u.P50 != 14*time.Millisecond || u.P99 != 29*time.Millisecond {
			t.Errorf("share %v, rate %v, waits %v %v", u.Share, u.Now, u.P50, u.P99)
		}
		h := driver.Hold{Name: "x", Owner: "w"}
		s.Refused(h, time.Now())
		time.Sleep(20 * time.Second)
		s.Refused(h, time.Now())
		s.take("x", "w", 100, 0)
		past, u := s.History("x")
		if past[0].Waited != 20*time.Second || u.Waiting != 0 || len(past) != 31 || past[1].End != "end.released" {
			t.Errorf("%d records, %+v, %+v", len(past), past[0], u)
		}
		time.Sleep(2 * time.Minute)
		if past, _ = s.History("x"); past[0].End != "end.expired" || past[0].Lasted() != time.Minute {
			t.Errorf("%+v", past[0])
		}
		expect.Equal(t, s.Hot()[0].Name, "x", "not hot")
		time.Sleep(10 * time.Minute)
		expect.Equal(t, len(s.Hot()), 0, "hot for ever")
	})
}

// What somebody looks at does not make the server forget what it has seen, whichever came first.
func TestLookingForgetsNothing(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := New()
			expired := 0
			s.OnEnd = func(_ string, sp *Record) { expired++ }
			look := func() {
				for i := range 2 * mostNames {
					s.Observed(fmt.Sprint("held elsewhere ", i), []Holder{{Fence: 7}})
				}
			}
			if first {
				look()
			}
			for i := range 20 {
				s.take(fmt.Sprint("x", i), "a", 1, 0)
			}
			look()
			time.Sleep(2 * time.Minute)
			s.Expire(time.Now())
			expect.Equal(t, expired, 20, "holds have ended by their TTL")
			expect.Equal(t, len(s.names), mostNames)
			expect.Equal(t, s.recent.Len(), mostNames)
		})
	}
}

// A server remembers a bounded number of holds.
func TestSeenIsBounded(t *testing.T) {
	t.Parallel()
	s := New()
	for i := range 3 * mostNames {
		h := s.take(fmt.Sprint("n", i), "o", 1, 0)
		s.Lost(h)
		s.UnknownRenewal(h, errors.New(strings.Repeat("x", 10_000)))
	}
	for i := range uint64(2000) {
		s.take("x", fmt.Sprint(i), i+1, time.Second)
		s.Refused(driver.Hold{Name: "x", Owner: fmt.Sprint("w", i)}, time.Now())
		s.Called("acquire", false, time.Second)
	}
	n := s.name("x")
	if len(s.names) > mostNames || s.recent.Len() != len(s.names) || len(s.incidents) != mostIncidents || len(n.records) != mostSpells ||
		len(n.holds) > mostWaiting || len(n.waiting) > mostWaiting || len(n.waits.all) != sampleSize || len(s.incidents[5].Detail) > 2*mostText {
		t.Errorf("%d names, %d incidents, %d records, %d holds, %d waits", len(s.names), len(s.incidents), len(n.records), len(n.holds), len(n.waits.all))
	}
	var x series
	for i := range 10_000 {
		x.span(time.Unix(int64(i*7), 0), time.Unix(int64(i*7+5), 0))
	}
	if len(x.steps) > steps {
		t.Errorf("%d steps", len(x.steps))
	}
}

// The owner of a grant is known by each of its fences, as long as it holds.
func TestOwnerOfAFence(t *testing.T) {
	t.Parallel()
	s := New()
	h := s.take("x", "a", 7, 0)
	s.take("y", "b", 8, 0)
	expect.Equal(t, fmt.Sprintf("%q %q %q", s.Owner("x", 7), s.Owner("x", 8), s.Owner("z", 7)), `"a" "" ""`)
	s.Released(h)
	expect.Equal(t, s.Owner("x", 7), "", "once released")
}

// A loss is noticed by a push, by a renewal and by the client that broke the lock. It is reported once.
func TestIncidents(t *testing.T) {
	t.Parallel()
	s := New()
	a, b := s.take("a", "oa", 7, 0), s.take("b", "ob", 8, 0)
	s.Lost(a)
	s.Lost(a)
	s.UnknownRenewal(b, errors.New("no answer for ob"))
	s.Broken(b, 8, "oncall")
	s.Lost(b)
	var got []string
	for _, i := range s.News() {
		got = append(got, fmt.Sprintf("%s %s %d %s%s", i.Kind, i.Name, i.Fence, i.By, i.Detail))
	}
	expect.Equal(t, strings.Join(got, "; "), "broken b 8 oncall; unknown b 8 no answer for …; lost a 7 ")
}
