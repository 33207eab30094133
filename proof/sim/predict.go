package sim

import (
	"math"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/bench/measured"
)

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Predict returns what the points of a Record should be.
func Predict(c measured.Costs, takenPerS float64) (leases, processes, waiters measured.Point) {
	fight := Contest{
		Processes: 4, Goroutines: 4,
		Window: micros(distlock.DefaultHandoffWindow), MaxHandoff: distlock.DefaultHandoffMax,
	}.Run(c, 2*Second)
	turns := Contest{Processes: 256, Goroutines: 1, Hold: c.SleepOne}.Run(c, 3*Second)
	return predictLeases(c, takenPerS), fight.point(), turns.point()
}

func (o Outcome) point() measured.Point {
	return measured.Point{Rate: o.Rate, P999MS: o.P999 / Millisecond, LongestMS: o.Longest / Millisecond, Commands: o.Commands}
}

// predictLeases takes many leases, and counts the renewals in the minute that follows.
func predictLeases(c measured.Costs, takenPerS float64) measured.Point {
	const leases, minute = 100_000, 65 * Second
	s, commands, server, client := New(1), 0., 0., 0.
	taking := leases / takenPerS * Second
	w := &Watchdog{Sim: s, TTL: micros(distlock.DefaultTTL), Margin: Second}
	w.Renew = func(holds []*Lease, _ float64, answered func(bool)) {
		n, scripts := float64(len(holds)), math.Ceil(float64(len(holds))/scriptSize)
		service := scripts*(c.RenewCall+c.Reading()) + n*c.RenewHold
		commands, server, client = commands+scripts, server+service, client+n*c.ClientRenewHold
		s.After(service, func() { answered(true) })
	}
	for i := range leases {
		s.After(float64(i)/leases*taking, func() { w.Add(&Lease{}, s.Now) })
	}
	s.Run(taking)
	commands, server, client = 0, minute*c.Idle/100, 0
	s.Run(taking + minute)
	seconds := minute / Second
	return measured.Point{Commands: commands / seconds, ServerCPU: 100 * server / minute, ClientCPU: 100 * client / minute}
}
