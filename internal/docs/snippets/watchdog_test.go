package snippets

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/distlocktest"
)

// clocked records when events happened.
type clocked struct {
	mu     sync.Mutex
	events []time.Time
}

func (c *clocked) event(distlock.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, time.Now())
}

// since returns the times of all events, from start on.
func (c *clocked) since(start time.Time) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, e := range c.events {
		all = append(all, e.Sub(start))
	}
	return all
}

// The watchdog does what the table in docs/ttl.md says, with a TTL of 30 s.
func TestTTLPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed, unanswered, lost clocked
		fake := distlocktest.NewWith(t, &distlock.Options{Observer: &distlock.Observer{
			Renewed: renewed.event, Unanswered: unanswered.event, Lost: lost.event,
		}})
		granted := time.Now()
		lease, err := fake.Client.Mutex("m").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		at := renewed.since(granted)
		if len(at) != 1 || at[0] < 8*time.Second || at[0] > 10*time.Second {
			t.Fatalf("renewed after %v; want once, after 10 s", at)
		}
		last := granted.Add(at[0])
		fake.Down()
		<-lease.Context().Done()
		synctest.Wait() // the event comes from another goroutine
		if at := lost.since(last); !errors.Is(lease.Err(), distlock.ErrLost) || len(at) != 1 || at[0] != 29*time.Second {
			t.Errorf("lost after %v; want 29 s", at)
		}
		tries := unanswered.since(last)
		t.Log("renewals without an answer after", tries)
		for i, d := range tries {
			if i > 0 && d-tries[i-1] > 3750*time.Millisecond {
				t.Errorf("no renewal was tried for %v", d-tries[i-1])
			}
		}
		if len(tries) < 8 || tries[0] != 10*time.Second || tries[1]-tries[0] > 750*time.Millisecond {
			t.Errorf("%d renewals were tried", len(tries))
		}
	})
}

// An outage of half of the TTL costs no lease, whenever it begins.
func TestHalfATTL(t *testing.T) {
	for begins := range 40 {
		synctest.Test(t, func(t *testing.T) {
			fake := distlocktest.New(t)
			lease, err := fake.Client.Mutex("m").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(begins) * 300 * time.Millisecond)
			fake.Down()
			time.Sleep(15 * time.Second)
			fake.Up()
			time.Sleep(time.Minute)
			if err := lease.Err(); err != nil {
				t.Errorf("an outage that began after %d × 300 ms: %v", begins, err)
			}
		})
	}
}
