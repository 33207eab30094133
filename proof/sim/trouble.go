package sim

import (
	"math"

	"github.com/distlock/distlock/bench/measured"
)

// Outage is one server of a fleet that can't be reached for a time, and keeps its data.
type Outage struct {
	Fleet
	Down float64

	// Scale simulates only a part of the callers, on a server that is slower by as much. Its queue takes
	// the same time then.
	Scale int
}

// Recovery is the outcome of an Outage.
type Recovery struct {
	Lost float64 // share of the server's leases
	Done float64 // from the end of the outage until all others are renewed
}

// Run simulates one outage.
func (o Outage) Run(c measured.Costs) Recovery {
	const start = 15 * Second
	end := start + o.Down
	s := New(1)
	server := &Station{Sim: s}
	scale := float64(o.Scale)
	leases, each := 0, float64(o.Leases)/float64(o.Processes*o.Shards)
	behind := map[*Lease]bool{} // not renewed since the outage
	r := Recovery{}
	var all []*Watchdog
	for range o.Processes / o.Scale {
		n := int(each)
		if s.Float64() < each-float64(n) {
			n++
		}
		leases += n
		w, on := &Watchdog{Sim: s, TTL: o.TTL, Margin: o.Margin}, &connection{Station: server, network: o.Network}
		on.reading = c.Reading() * scale
		connected := true
		w.Renew = func(holds []*Lease, patience float64, answered func(bool)) {
			var request *command
			over := false
			answer := func(ok bool) {
				if !over {
					over = true
					answered(ok)
				}
			}
			s.After(patience, func() {
				if request != nil {
					request.withdrawn = true
				}
				answer(false)
			})
			if s.Now >= start && s.Now < end {
				connected = false
				s.After(2*o.Network, func() { answer(false) })
				return
			}
			if !connected {
				connected = true
				on.send(c.Connect*scale, func() {})
			}
			scripts := (len(holds) + scriptSize - 1) / scriptSize
			request = on.send((c.Renewal(len(holds))+float64(scripts-1)*c.Renewal(0))*scale, func() { answer(true) })
		}
		w.Renewed = func(l *Lease) {
			if s.Now > end && behind[l] {
				delete(behind, l)
				r.Done = s.Now - end
			}
		}
		for range n {
			l := &Lease{}
			behind[l] = true
			w.Add(l, -s.Float64()*o.TTL/3)
		}
		all = append(all, w)
	}
	s.Run(end + 2*o.TTL)
	for _, w := range all {
		r.Lost += float64(w.Lost) / float64(leases)
	}
	return r
}

// Hottest returns the share of the most frequent of some names, the n-th of which has a probability of 1/n^s.
func Hottest(names int, s float64) float64 {
	sum := 0.
	for n := names; n > 0; n-- {
		sum += math.Pow(float64(n), -s)
	}
	return 1 / sum
}

// Wait returns quantiles of the wait for a name that is wanted at a rate, in one queue: the lock is
// passed on every turn.
func Wait(rate, turn, time float64) (p50, p99 float64) {
	s, waits := New(1), Times{}
	lock := &Station{Sim: s}
	s.Arrivals(rate, func() {
		start := s.Now
		lock.Do(turn, func() { waits = append(waits, s.Now-start-turn) })
	})
	s.Run(time)
	return waits.Quantile(.5), waits.Quantile(.99)
}
