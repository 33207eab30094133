package sim

import (
	"math"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
)

// Mean waits are known for Poisson arrivals at one server: ρ/(1-ρ) services with exponential service
// times (M/M/1), and half of that with constant ones (M/D/1).
func TestLongStationWaitsAsQueueingTheorySays(t *testing.T) {
	for _, load := range []float64{.3, .6, .9} {
		for name, theory := range map[string]float64{"M/M/1": load / (1 - load), "M/D/1": load / (1 - load) / 2} {
			s := New(1)
			server, waits := &Station{Sim: s}, Times{}
			s.Arrivals(load*Second, func() { // a service takes 1 µs on average
				service := 1.
				if name == "M/M/1" {
					service = s.ExpFloat64()
				}
				start := s.Now
				server.Do(service, func() { waits = append(waits, s.Now-start-service) })
			})
			s.Run(2 * Second)
			if !near(waits.Mean(), theory, .03) {
				t.Errorf("%s at %v: mean wait %.3f, theory says %.3f", name, load, waits.Mean(), theory)
			}
			if used := server.Busy / s.Now; !near(used, load, .01) {
				t.Errorf("%s at %v: the server is busy for %.3f", name, load, used)
			}
		}
	}
}

func TestSimRunsEventsInOrder(t *testing.T) {
	s := New(1)
	var got []float64
	for _, at := range []float64{3, 1, 2, 1, 5} {
		s.After(at, func() { got = append(got, s.Now) })
	}
	s.Run(4)
	for i, want := range []float64{1, 1, 2, 3} {
		if len(got) != 4 || got[i] != want {
			t.Fatalf("events at %v", got)
		}
	}
	expect.Equal(t, s.Now, 4, "the present")
}

func TestTimes(t *testing.T) {
	list := Times{4, 1, 3, 2}
	if list.Quantile(.5) != 3 || list.Quantile(1) != 4 || list.Mean() != 2.5 || Times(nil).Quantile(.5) != 0 {
		t.Error(list.Quantile(.5), list.Quantile(1), list.Mean())
	}
}

// near reports whether got is within a share of want.
func near(got, want, within float64) bool { return math.Abs(got-want) <= within*want }
