package sim

import (
	"slices"

	"github.com/distlock/distlock/bench/measured"
)

// Fleet is many processes with locks, and the Redis servers that they share.
type Fleet struct {
	Processes int
	Leases    int     // that they hold all the time
	Pairs     float64 // acquires and releases per second
	Shards    int

	// Gateways are processes that have the only connections, and send on what the others request. With 0
	// each process connects to each server itself.
	Gateways int

	TTL, Margin float64
	Network     float64 // time of a message
}

// Connections returns how many each server has.
func (f Fleet) Connections() int {
	if f.Gateways > 0 {
		return f.Gateways
	}
	return f.Processes
}

// Load is the work of one server.
type Load struct {
	Used                   float64 // share of its time that is asked for, which may be more than all
	Median, P99, P999      float64 // time of a Lock
	Renewals, HoldsRenewed float64 // commands, and holds in them, per second
}

// renewals has some of the processes renew for a time. It returns the renewals that they send to one
// shard, those of one moment together, as numbers of holds. Each lease is replaced by another, as
// often as Pairs says.
func (f Fleet) renewals(some int, time float64) (moments [][]int) {
	warm := f.TTL
	life := float64(f.Leases) / f.Pairs * Second
	for i := range some {
		s := New(uint64(i))
		w := &Watchdog{Sim: s, TTL: f.TTL, Margin: f.Margin}
		last := -1.
		w.Renew = func(holds []*Lease, _ float64, answered func(bool)) {
			s.After(2*f.Network, func() { answered(true) })
			n := 0
			for _, l := range holds {
				if l.shard == 0 {
					n++
				}
			}
			if n == 0 || s.Now < warm {
				return
			}
			if s.Now != last {
				moments = append(moments, nil)
				last = s.Now
			}
			now := &moments[len(moments)-1]
			for ; n > 0; n -= scriptSize {
				*now = append(*now, min(n, scriptSize))
			}
		}
		var take func()
		take = func() {
			l := &Lease{shard: s.IntN(f.Shards)}
			w.Add(l, s.Now)
			s.After(s.ExpFloat64()*life, func() { w.Remove(l); take() })
		}
		for range f.Leases / f.Processes {
			s.After(s.Float64()*f.TTL/3, take)
		}
		s.Run(warm + time)
	}
	return moments
}

// Steady returns the load of one server, as the average of a time. Only this server's share is
// simulated; the renewals are simulated for a sample of the processes.
func (f Fleet) Steady(c measured.Costs, time float64) Load {
	s := New(1)
	server, locks, load := &Station{Sim: s}, Times{}, Load{}
	conns := make([]connection, min(f.Connections(), 10_000)) // with more it is rare that two commands meet
	network := f.Network
	if f.Gateways > 0 {
		network *= 2
	}
	for i := range conns {
		conns[i] = connection{Station: server, network: network, reading: c.Reading()}
	}
	conn := func() *connection { return &conns[s.IntN(len(conns))] }

	s.Arrivals(f.Pairs/float64(f.Shards), func() {
		on, start := conn(), s.Now
		on.send(c.Together.Acquire, func() {
			locks = append(locks, s.Now-start)
			on.send(c.Together.Release, func() {})
		})
	})
	some := max(1, min(f.Processes, 10_000*f.Processes/f.Leases))
	moments := f.renewals(some, f.TTL)
	rate := float64(len(moments)) / f.TTL * Second * float64(f.Processes) / float64(some)
	s.Arrivals(rate, func() {
		on := conn()
		for _, holds := range moments[s.IntN(len(moments))] {
			load.Renewals++
			load.HoldsRenewed += float64(holds)
			on.send(c.Renewal(holds), func() {})
		}
	})
	s.Run(time)
	load.Used = server.Busy / time
	for i := range conns {
		load.Used += conns[i].left() / time
	}
	load.Median, load.P99, load.P999 = locks.Quantile(.5), locks.Quantile(.99), locks.Quantile(.999)
	load.Renewals *= Second / time
	load.HoldsRenewed *= Second / time
	return load
}

// connection sends commands at once, many of them before the first is answered, as redislock's does: the server reads
// those together that have come by the time it gets to them. One that owes an answer and is silent gets no more.
type connection struct {
	*Station
	network, reading float64
	waiting          []*command // unsent
	come             []*command // to the server, which has not read them
	owed             int        // commands that were sent
	silent           float64    // since when there was no answer, while one is owed
}

// As in redisconn; maxOwed is the number of usual commands in its bytes.
const (
	maxOwed   = 4000
	maxSilent = 100 * Millisecond
)

type command struct {
	service   float64
	done      func()
	withdrawn bool // no effect once it was sent
}

func (c *connection) send(service float64, done func()) *command {
	x := &command{service: service, done: done}
	c.waiting = append(c.waiting, x)
	c.write()
	return x
}

// left returns the time that those commands take which the server has not read.
func (c *connection) left() (time float64) {
	for _, x := range slices.Concat(c.come, c.waiting) {
		time += x.service
	}
	return time
}

func (c *connection) write() {
	if c.owed == 0 {
		c.silent = c.Now
	} else if c.owed >= maxOwed || c.Now-c.silent >= maxSilent {
		return
	}
	some := slices.DeleteFunc(c.waiting, func(x *command) bool { return x.withdrawn })
	c.waiting = nil
	if c.owed += len(some); len(some) > 0 {
		c.After(c.network, func() { c.arrive(some) })
	}
}

func (c *connection) arrive(some []*command) {
	c.come = append(c.come, some...)
	if len(c.come) > len(some) {
		return // the server will read these along
	}
	var read []*command
	c.Serve(func() float64 {
		read, c.come = c.come, nil
		service := c.reading
		for _, x := range read {
			service += x.service
		}
		return service
	}, func() {
		c.After(c.network, func() {
			c.owed -= len(read)
			c.silent = c.Now
			for _, x := range read {
				x.done()
			}
			c.write()
		})
	})
}
