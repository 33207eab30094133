package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/renew"
)

// calls counts the holds of each moment.
type calls struct {
	n     int
	holds map[float64]int
}

func (c *calls) add(at float64, holds int) {
	c.n++
	c.holds[at] += holds
}

// The model of the watchdog and the real one, in virtual time, get the same holds and the same answers.
func TestWatchdogRenewsAsTheRealOneDoes(t *testing.T) {
	const holds, ttl, until = 300, 30 * Second, 100 * Second
	grant := func(i int) float64 { return float64(i) * 40 * Millisecond } // within 12 s
	for name, down := range map[string]func(at float64) bool{
		"without an outage":         func(float64) bool { return false },
		"with an outage of 20 s":    func(at float64) bool { return at > 30*Second && at < 50*Second },
		"with an outage of 27 s":    func(at float64) bool { return at > 30*Second && at < 57*Second },
		"with an outage at the end": func(at float64) bool { return at > 30*Second },
	} {
		t.Run(name, func(t *testing.T) {
			model := calls{holds: map[float64]int{}}
			s := New(1)
			w := &Watchdog{Sim: s, TTL: ttl, Margin: Second}
			w.Renew = func(list []*Lease, _ float64, answered func(bool)) {
				model.add(s.Now, len(list))
				ok := !down(s.Now)
				s.After(0, func() { answered(ok) })
			}
			for i := range holds {
				s.After(grant(i), func() { w.Add(&Lease{}, s.Now) })
			}
			s.Run(until)

			real, lost := realWatchdog(t, holds, grant, until, down)
			t.Logf("lost %d, really %d; calls %d, really %d", w.Lost, lost, model.n, real.n)
			if !near(float64(w.Lost), float64(lost), .1) || !near(float64(model.n), float64(real.n), .1) {
				t.Error("they differ")
			}
			if lost == 0 && real.n < 100 && fmt.Sprint(model.holds) != fmt.Sprint(real.holds) {
				t.Errorf("holds in calls %v, really %v", model.holds, real.holds)
			}
		})
	}
}

func realWatchdog(t *testing.T, holds int, grant func(int) float64, until float64, down func(float64) bool) (c calls, lost int) {
	c.holds = map[float64]int{}
	synctest.Test(t, func(t *testing.T) {
		start, mu, counter := time.Now(), sync.Mutex{}, &losses{}
		now := func() float64 { return micros(time.Since(start)) }
		life, end := context.WithCancel(t.Context())
		w := renew.New(renew.Config{
			Life: life, Now: func() time.Duration { return time.Since(start) }, Tasks: counter,
			Renew: func(_ context.Context, list []driver.Hold) []error {
				mu.Lock()
				defer mu.Unlock()
				c.add(now(), len(list))
				if down(now()) {
					return slices.Repeat([]error{errors.New("down")}, len(list))
				}
				return make([]error, len(list))
			},
		})
		terms := &renew.Terms{TTL: 30 * time.Second, Margin: time.Second, CallTimeout: 5 * time.Second}
		for i := range holds {
			time.Sleep(time.Duration((grant(i) - now()) * float64(time.Microsecond)))
			w.Add(&renew.Hold{}, counter, terms, time.Since(start), terms.TTL)
		}
		time.Sleep(time.Duration((until - now()) * float64(time.Microsecond)))
		w.Close(func(renew.Holder) bool { return false })
		end()
		counter.tasks.Wait()
		counter.mu.Lock()
		defer counter.mu.Unlock()
		lost = counter.n
	})
	return c, lost
}

// losses is the holder of all holds, and counts those that are lost.
type losses struct {
	tasks sync.WaitGroup
	mu    sync.Mutex
	n     int
}

func (l *losses) Begin()                                    { l.tasks.Add(1) }
func (l *losses) End()                                      { l.tasks.Done() }
func (l *losses) Request(ttl time.Duration) (h driver.Hold) { h.TTL = ttl; return h }
func (l *losses) Answered(error, time.Duration)             {}
func (l *losses) Lose(error, bool) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	return func() {}
}
