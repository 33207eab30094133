package renew

import (
	"container/heap"
	"testing"
	"time"
)

type anyHolder struct{ Holder }

// Holds that wait for a retry are lost about as quickly as others: an outage ends all holds of a client at once.
func TestHoldsThatWaitAreLostAtOnce(t *testing.T) {
	losing := func(waits bool) (best time.Duration) {
		for range 3 {
			w := New(Config{Now: func() time.Duration { return time.Hour }})
			for range 30_000 {
				h := &Hold{holder: anyHolder{}, index: -1, waits: waits}
				heap.Push(&w.queue, h)
				if waits {
					w.retry = append(w.retry, h)
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
			took := time.Since(start)
			if all != 30_000 || len(w.retry) != 0 {
				t.Fatalf("%d lost, %d to retry", all, len(w.retry))
			}
			if best == 0 || took < best {
				best = took
			}
		}
		return best
	}
	if waiting, others := losing(true), losing(false); waiting > 5*others {
		t.Errorf("30,000 holds that wait for a retry are lost in %v, others in %v", waiting, others)
	}
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
	if slices != many/maxSlice {
		t.Errorf("%d slices, want %d", slices, many/maxSlice)
	}
}
