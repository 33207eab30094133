package sim

import (
	"math"
	"testing"

	"github.com/distlock/distlock/bench/measured"
)

var testFleet = Fleet{Processes: 1e5, Leases: 1e6, Pairs: 1e4, Shards: 4, TTL: 30 * Second, Margin: Second, Network: 100}

// Every lease is renewed every third of its TTL, or up to a sixteenth of the TTL sooner.
func TestAllLeasesAreRenewed(t *testing.T) {
	for _, processes := range []int{50, 1000, 100_000} {
		f := testFleet
		f.Processes = processes
		l := f.Steady(measured.Latest().Costs, 10*Second)
		if each := float64(f.Leases) / l.HoldsRenewed / float64(f.Shards); each < 8 || each > 11 {
			t.Errorf("%d processes: each lease is renewed every %.1f s", processes, each)
		}
	}
}

// An outage takes the same course for a tenth of the processes on a server that is ten times slower.
func TestLongScaleDoesNotMatter(t *testing.T) {
	c := measured.Latest().Costs
	f := testFleet
	f.Processes, f.Leases, f.Shards = 2000, 8e4, 1
	o := Outage{Fleet: f, Down: 20 * Second, Scale: 20}
	small := o.Run(c)
	o.Scale = 2
	large := o.Run(c)
	t.Logf("%+v, at a tenth %+v", large, small)
	if math.Abs(large.Lost-small.Lost) > .03 || !near(small.Done, large.Done, .15) {
		t.Error("they differ")
	}
}

// Callers that never give up all end up at the dead server; with a deadline they lose it each time.
func TestHottest(t *testing.T) {
	if h := Hottest(1000, 1); !near(h, 1/7.485, .001) { // the thousandth harmonic number
		t.Errorf("the hottest name has %v", h)
	}
}
