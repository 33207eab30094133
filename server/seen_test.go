package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
)

// take notes a grant after a wait.
func (s *seen) take(name, owner string, fence uint64, waited time.Duration) driver.Hold {
	h := driver.Hold{Name: name, Owner: owner, Mode: driver.Exclusive, TTL: time.Minute}
	s.granted(driver.Request{Hold: h, Meta: map[string]string{"program": "p", "pid": "1", "host": "h"}},
		driver.Grant{Fence: fence, Fences: 1, TTL: h.TTL}, time.Now().Add(-waited), time.Now())
	return h
}

// The end of each hold is counted, whether anybody looks at the page or not.
func TestSeenEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSeen()
		var ends []string
		s.onEnd = func(sp *holdRecord) { ends = append(ends, fmt.Sprint(sp.Fence, sp.End)) }
		s.take("x", "a", 1, 0)
		time.Sleep(2 * time.Minute)
		s.take("x", "b", 2, 0) // a's TTL is over
		leader := s.take("leader", "c", 3, 0)
		for i := range 2 * mostNames {
			s.take(fmt.Sprint(i), "d", 4, 0)
			if i%(mostNames/2) == 0 {
				s.renewed(leader, time.Now())
			}
		}
		s.released(leader)
		s.take("y", "e", 5, 0)
		time.Sleep(2 * time.Minute)
		ends = slices.DeleteFunc(ends, func(e string) bool { return strings.HasPrefix(e, "4") })
		s.expire(time.Now())
		ends = slices.DeleteFunc(ends, func(e string) bool { return strings.HasPrefix(e, "4") })
		if want := []string{"1end.expired", "3end.released", "5end.expired"}; !slices.Equal(slices.Sorted(slices.Values(ends)), want) {
			t.Errorf("got the ends %q, want %q", ends, want)
		}
	})
}

func TestSeenUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSeen()
		time.Sleep(stepTime - time.Duration(time.Now().UnixNano())%stepTime) // begin with a step
		for i := range 30 {                                                  // held for one second of two
			h := s.take("x", fmt.Sprint(i), uint64(i+1), time.Duration(i)*time.Millisecond)
			time.Sleep(time.Second)
			s.released(h)
			time.Sleep(time.Second)
		}
		_, u := s.history("x")
		if p := percent(u.Share); p < 40 || p > 50 || rate(u.Now) != "0.4/s" || u.P50 != 14*time.Millisecond || u.P99 != 29*time.Millisecond {
			t.Errorf("share %d %%, rate %s, waits %v %v", p, rate(u.Now), u.P50, u.P99)
		}
		h := driver.Hold{Name: "x", Owner: "w"}
		s.refused(h, time.Now())
		time.Sleep(20 * time.Second)
		s.refused(h, time.Now())
		s.take("x", "w", 100, 0)
		past, u := s.history("x")
		if past[0].Waited != 20*time.Second || u.Waiting != 0 || len(past) != 31 || past[1].End != "end.released" {
			t.Errorf("%d records, %+v, %+v", len(past), past[0], u)
		}
		time.Sleep(2 * time.Minute)
		if past, _ = s.history("x"); past[0].End != "end.expired" || past[0].Lasted() != time.Minute {
			t.Errorf("%+v", past[0])
		}
		if s.hot()[0].Name != "x" {
			t.Error("not hot")
		}
		time.Sleep(10 * time.Minute)
		if len(s.hot()) != 0 {
			t.Error("hot for ever")
		}
	})
}

// A server remembers a bounded number of holds.
func TestSeenIsBounded(t *testing.T) {
	t.Parallel()
	s := newSeen()
	for i := range 3 * mostNames {
		h := s.take(fmt.Sprint("n", i), "o", 1, 0)
		s.lost(h)
		s.unknownRenewal(h, errors.New(strings.Repeat("x", 10_000)))
	}
	for i := range uint64(2000) {
		s.take("x", fmt.Sprint(i), i+1, time.Second)
		s.refused(driver.Hold{Name: "x", Owner: fmt.Sprint("w", i)}, time.Now())
		s.called("acquire", false, time.Second)
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

// A loss is noticed by a push, by a renewal and by the client that broke the lock. It is reported once.
func TestIncidents(t *testing.T) {
	t.Parallel()
	s := newSeen()
	a, b := s.take("a", "oa", 7, 0), s.take("b", "ob", 8, 0)
	s.lost(a)
	s.lost(a)
	s.unknownRenewal(b, errors.New("no answer for ob"))
	s.broken(b, 8, "oncall")
	s.lost(b)
	var got []string
	for _, i := range s.news() {
		got = append(got, fmt.Sprintf("%s %s %d %s%s", i.Kind, i.Name, i.Fence, i.By, i.Detail))
	}
	if text := strings.Join(got, "; "); text != "broken b 8 oncall; unknown b 8 no answer for …; lost a 7 " {
		t.Error(text)
	}
}

// counting counts what the poller costs the backend.
type counting struct {
	*memlock.Backend
	lists atomic.Int32
}

func (c *counting) List(ctx context.Context, prefix string, yield func(string) bool) error {
	c.lists.Add(1)
	return c.Backend.List(ctx, prefix, yield)
}

// A thousand viewers cost what one does, and none cost nothing.
func TestPollerIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &counting{Backend: memlock.New()}
		s, err := New(b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var leave []func()
		viewers := make([]*viewer, 1000)
		for i := range viewers {
			viewers[i] = &viewer{}
			leave = append(leave, s.poller.join(viewers[i]))
		}
		time.Sleep(9500 * time.Millisecond)
		if n := b.lists.Load(); n != 10 {
			t.Errorf("%d lists in 10 seconds", n)
		}
		for _, v := range viewers {
			<-v.fresh
		}
		for _, l := range leave {
			l()
		}
		time.Sleep(time.Minute)
		if n := b.lists.Load(); n > 11 {
			t.Errorf("%d lists without a viewer", n-10)
		}
		leave[0] = s.poller.join(viewers[0])
		synctest.Wait()
		<-viewers[0].fresh
		leave[0]()
	})
}

// A backend that is slow is left alone for most of the time, and its last answer is shown.
func TestPollerIsGentle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &slow{Backend: memlock.New()}
		s, err := New(b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		leave := s.poller.join(&viewer{})
		time.Sleep(99 * time.Second)
		if n := b.lists.Load(); n != 10 {
			t.Errorf("%d lists of a second in 100 seconds", n)
		}
		b.broken.Store(true)
		time.Sleep(11 * time.Second)
		if snap := s.poller.latest.Load(); snap.failed(fullIdentity) != "no route" || snap.failed(noIdentity) != "–" {
			t.Errorf("%+v", snap)
		}
		leave()
		time.Sleep(time.Minute)
	})
}

type slow struct {
	*memlock.Backend
	lists  atomic.Int32
	broken atomic.Bool
}

func (s *slow) List(context.Context, string, func(string) bool) error {
	s.lists.Add(1)
	time.Sleep(time.Second)
	if s.broken.Load() {
		return errors.New("no route")
	}
	return nil
}

// The rows are the same as in the document, in each language.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	for lang, words := range []struct{ file, asAbove, and string }{
		{"../docs/guarantees.md", "as above", ", and"},
		{"../docs/zh-CN/guarantees.md", "同上", "，以及"},
	} {
		doc, err := os.ReadFile(words.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range guarantees {
			r := g.row[lang]
			row := fmt.Sprintf("| %s | %s | %s | %s | %s |\n", r.Backend, r.Two, r.Back, r.Dead, r.Woken)
			if r.Backend == redisReplicated[lang].Backend {
				row = strings.ReplaceAll(row, redisAlone[lang].Two+words.and, words.asAbove+words.and)
				row = strings.ReplaceAll(row, redisAlone[lang].Back, words.asAbove)
			}
			if !strings.Contains(string(doc), row) {
				t.Errorf("%s has no row %s", words.file, row)
			}
		}
	}
	if guaranteeOf("redis://h:6379/0", 0).Two != redisAlone[0].Two || guaranteeOf("shard(a)", 1).Two != "" || guaranteeOf("redis+cluster://a", 1).Two != redisReplicated[1].Two {
		t.Error("wrong row")
	}
}

// Every text has both languages, and is used.
func TestTexts(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	files, _ := pageFiles.ReadDir("page")
	for _, f := range files {
		text, _ := pageFiles.ReadFile("page/" + f.Name())
		all.Write(text)
	}
	for _, name := range []string{"seen.go", "view.go", "page.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for key, text := range texts {
		prefix, _, _ := strings.Cut(key, ".")
		made := prefix == "mode" || prefix == "incident"
		if text[0] == "" || text[1] == "" || !made && !strings.Contains(all.String(), `"`+key+`"`) {
			t.Errorf("%s: %q", key, text)
		}
	}
}
