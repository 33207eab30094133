package sim

import "github.com/distlock/distlock/bench/measured"

import "math"

// Outage is one server of a fleet that can't be reached for a time, and keeps its data.
type Outage struct {
	Fleet
	Down     float64
	Silent   bool // nothing answers; otherwise connections are refused
	NoJitter bool

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
		w, on := &Watchdog{Sim: s, TTL: o.TTL, Margin: o.Margin, NoJitter: o.NoJitter}, &connection{Station: server, network: o.Network}
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
				if !o.Silent {
					s.After(2*o.Network, func() { answer(false) })
				}
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

// DeadShard returns how many locks its clients get, relative to before, once one of a number of shards
// has been dead for a time. Each client locks one name after the other, at random, and pauses in
// between. A Lock gives up after a deadline; 0 means never.
func DeadShard(shards int, pause, deadline, after float64) float64 {
	const clients = 5000
	s, got := New(1), 0
	window := max(after/10, 10*pause)
	for range clients {
		var work func()
		work = func() {
			if s.IntN(shards) > 0 {
				if s.Now > after {
					got++
				}
				s.After(s.ExpFloat64()*pause, work)
			} else if deadline > 0 {
				s.After(deadline+s.ExpFloat64()*pause, work)
			}
		}
		s.After(s.Float64()*pause, work)
	}
	s.Run(after + window)
	return float64(got) / (clients * window / pause)
}

// Zipf is a fleet whose callers choose among names, the n-th with a probability of 1/n^S.
type Zipf struct {
	Names int
	S     float64
	share []float64 // of the first names, the most frequent one first
}

const hotNames = 100_000

// NewZipf returns a Zipf with its shares.
func NewZipf(names int, s float64) Zipf {
	z, sum := Zipf{Names: names, S: s}, 0.
	for n := names; n > 0; n-- {
		sum += math.Pow(float64(n), -s)
	}
	for n := range min(hotNames, names) {
		z.share = append(z.share, math.Pow(float64(n+1), -s)/sum)
	}
	return z
}

// Hottest returns the share of the most frequent name.
func (z Zipf) Hottest() float64 { return z.share[0] }

// Overloaded returns how many names are wanted more often than they can be passed on.
func (z Zipf) Overloaded(rate, turn float64) int {
	n := 0
	for _, share := range z.share {
		if rate*share*turn >= Second {
			n++
		}
	}
	return n
}

// Skew returns the load of the busiest of some shards, relative to the average.
func (z Zipf) Skew(shards int) float64 {
	s, load, rest := New(1), make([]float64, shards), 1.
	for _, share := range z.share {
		load[s.IntN(shards)] += share
		rest -= share
	}
	most := 0.
	for _, l := range load {
		most = max(most, l+rest/float64(shards))
	}
	return most * float64(shards)
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
