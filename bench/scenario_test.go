package bench

import (
	"fmt"
	"sync/atomic"
	"time"
)

// scenario measures one contender once.
type scenario struct {
	name       string
	title      string
	contenders []contender
	ratio      bool // print the first figure's ratio to the bare contenders
	measure    func(r *rig, c contender) (figures, error)
}

// rig is what every measurement needs.
type rig struct {
	*server
	settings
}

// settings are how long and how large.
type settings struct {
	time   time.Duration // of one measurement
	leases int
	hold   time.Duration // how long the leases are held
}

// ttl of locks in all scenarios but that of many leases.
const ttl = 30 * time.Second

var scenarios = []scenario{
	uncontended(1), uncontended(16), uncontended(128),
	oneLock(16), oneLock(64),
	{
		name: "processes", title: "One lock, 4 processes of 4 goroutines, empty section",
		contenders: everybody, measure: measureProcesses,
	},
	{
		name: "handoff", title: "Hand-off of a released lock to a waiter in another process",
		contenders: handers, measure: measureHandoff,
	},
	fair(64),
	{
		name: "leases", title: "Many leases held by one client, while 4 goroutines lock and unlock other names through it",
		contenders: keepers, measure: measureLeases,
	},
}

var names atomic.Int64

// freshName is a lock that no other measurement uses: what a contender left behind is
// in nobody's way.
func freshName() string { return fmt.Sprintf("bench:%d", names.Add(1)) }

// tally is what happened in one process.
type tally struct {
	Each    []int64 // acquisitions of each goroutine
	Times   histogram
	Elapsed time.Duration
}

func (t *tally) total() (n int64) {
	for _, each := range t.Each {
		n += each
	}
	return n
}

func (t *tally) rate() float64 { return float64(t.total()) / t.Elapsed.Seconds() }
