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
			start := time.Now()
			lost, _, _ := w.collect(time.Hour)
			took := time.Since(start)
			if len(lost) != 30_000 || len(w.retry) != 0 || len(w.queue) != 0 {
				t.Fatalf("%d lost, %d to retry and %d in the queue", len(lost), len(w.retry), len(w.queue))
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
