package renew

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
)

type anyHolder struct{ Holder }

// Holds that wait for a retry are lost about as quickly as others: an outage ends all holds of a client at once.
func TestHoldsThatWaitAreLostAtOnce(t *testing.T) {
	losing := func(waits bool) time.Duration {
		w := New(Config{Now: func() time.Duration { return time.Hour }})
		for range 30_000 {
			h := &Hold{holder: anyHolder{}, index: -1}
			heap.Push(&w.queue, h)
			if waits {
				w.retry.push(h)
			}
		}
		start, all := time.Now(), 0
		for len(w.queue) > 0 {
			lost, _ := w.collect(time.Hour)
			if all += len(lost); len(lost) > maxSlice {
				t.Fatalf("%d holds at once", len(lost))
			}
		}
		w.retries()
		if all != 30_000 || len(w.retry) != 0 {
			t.Fatalf("%d lost, %d to retry", all, len(w.retry))
		}
		return time.Since(start)
	}
	waiting, others := losing(true), losing(false)
	for range 100 { // on a busy machine the quickest of many is what it takes
		if waiting <= 5*others {
			return
		}
		waiting, others = min(waiting, losing(true)), min(others, losing(false))
	}
	t.Errorf("30,000 holds that wait for a retry are lost in %v, others in %v", waiting, others)
}

// Other callers wait for the mutex no longer than for a slice, however many holds are due together. Of those that are due
// a little later, only what fills a call is taken.
func TestSlicesAreBounded(t *testing.T) {
	const many = 30 * maxSlice
	w := New(Config{Now: func() time.Duration { return 20 * time.Second }})
	terms := &Terms{TTL: 30 * time.Second, Margin: time.Second}
	for range many {
		h := &Hold{holder: anyHolder{}, terms: terms, ttl: terms.TTL, limit: never, index: -1}
		h.extendTrust(10*time.Second, terms.TTL)
		h.schedule()
		heap.Push(&w.queue, h)
	}
	slices := 0
	for {
		lost, due := w.collect(20 * time.Second)
		n := len(lost)
		for _, holds := range due {
			n += len(holds)
		}
		if n == 0 {
			break
		}
		if slices++; n > maxSlice {
			t.Fatalf("%d holds at once", n)
		}
	}
	expect.Equal(t, slices, many/maxSlice, "slices")
}

func (anyHolder) Request(time.Duration) driver.Hold { return driver.Hold{} }

// waiting returns a Watchdog with n holds that wait for a retry, without room for one, and the holds.
func waiting(n int) (*Watchdog, []*Hold) {
	const now = time.Minute
	w := New(Config{Life: context.Background(), Now: func() time.Duration { return now }})
	w.retrying = maxRetries
	terms := &Terms{TTL: time.Hour, Margin: time.Second, CallTimeout: time.Second}
	var all []*Hold
	for range n {
		h := &Hold{holder: anyHolder{}, terms: terms, ttl: terms.TTL, limit: never, index: -1}
		h.extendTrust(0, terms.TTL)
		h.due, h.tries = now, 1+rand.Int32N(20)
		h.schedule()
		heap.Push(&w.queue, h)
		all = append(all, h)
	}
	for w.queue[0].dueBy(now) {
		w.collect(now)
	}
	return w, all
}

// Others wait for the mutex no longer for a retry, or for one that stops to wait, because very many holds wait for theirs.
func TestManyHoldsThatWaitForARetry(t *testing.T) {
	const many, most = 50_000, 200 // most: far from both, of a list that is sorted or searched
	best := func(f func() time.Duration) time.Duration { return min(f(), f(), f()) }
	call := best(func() time.Duration {
		w, all := waiting(maxBatch)
		start := time.Now()
		w.round(all)
		return time.Since(start)
	})
	retry := best(func() time.Duration {
		w, _ := waiting(many)
		w.retrying--
		start := time.Now()
		if rounds := w.retries(); len(rounds) != 1 {
			t.Fatalf("%d calls", len(rounds))
		}
		return time.Since(start)
	})
	if retry > most*call {
		t.Errorf("a retry while %d holds wait takes %v; to make a call for as many holds as it has %v", many, retry, call)
	}
	w, _ := waiting(many)
	w.retrying = 0
	for w.roomToRetry() {
		before := w.retry.len()
		w.retries()
		if taken := before - w.retry.len(); taken == 0 || taken >= 2*maxSlice {
			t.Fatalf("%d holds at once", taken)
		}
	}
	if w.retrying != maxRetries || w.retry.len() == 0 {
		t.Errorf("%d calls, %d holds still wait", w.retrying, w.retry.len())
	}
	forget := best(func() time.Duration {
		w, all := waiting(many)
		start := time.Now()
		for _, h := range all[many-maxBatch:] {
			w.Forget(h)
		}
		return time.Since(start)
	})
	if forget > most*call {
		t.Errorf("%d of %d holds that wait are forgotten in %v; to make a call for as many takes %v", maxBatch, many, forget, call)
	}
}

// The Watchdog leaves the processor to others between slices, but not for as long as the process was stopped in one.
func TestPauseAfterAStop(t *testing.T) {
	var now time.Duration
	w := New(Config{Now: func() time.Duration { return now }})
	terms := &Terms{TTL: 30 * time.Second, Margin: time.Second}
	h := &Hold{holder: anyHolder{}, terms: terms, ttl: terms.TTL, limit: never, index: -1}
	h.extendTrust(0, terms.TTL)
	h.schedule()
	heap.Push(&w.queue, h)
	began := h.due
	now = began + 15*time.Second
	if pause := w.pause(began); pause > terms.TTL/100 {
		t.Errorf("a pause of %v before renewals that are late", pause)
	}
	now = began + time.Millisecond
	if pause := w.pause(began); pause != time.Millisecond {
		t.Errorf("a pause of %v after a slice of 1 ms", pause)
	}
}
