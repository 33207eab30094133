// Package measured has what single operations cost on one machine, and points of whole systems that predictions
// are compared with. TestMeasure in package bench writes it; the simulator in proof/sim reads it.
package measured

import (
	_ "embed"
	"encoding/json"
)

// Costs are the costs of single operations on one machine, in microseconds. Each of them is measured
// alone, and none of them from the points that predictions are compared with.
type Costs struct {
	// The Redis server's processor time for one acquire and one release of a free lock.
	Alone    Pair // one goroutine, nothing else on the server
	Separate Pair // 64 connections, each with one command at a time
	Together Pair // 128 goroutines that share a connection, and its pipelines

	Refuse float64 // an attempt that is refused and queued
	Turn   float64 // a release that notifies the first in the queue, and an attempt of that one
	Watch  float64 // a subscription and its end

	RenewCall float64 // a renewal in a pipeline, without its holds
	RenewHold float64 // each hold in it

	Idle       float64 // % of a core, of a server without clients
	Connect    float64 // a connection, as a client opens it
	Connection float64 // bytes of the server's memory for it

	// A client's processor time.
	ClientPair      float64 // a pair of one goroutine
	ClientTogether  float64 // a pair of 128 goroutines
	ClientRenewHold float64 // the renewal of a hold by the watchdog

	// Elapsed times of one goroutine, medians.
	Lock     float64 // a free lock
	Unlock   float64
	Wake     float64 // from before an unlock until a waiter in another process has the lock, after a pause
	WakeBusy float64 // the same among processes that take turns without a pause: the processors are awake
	Pass     float64 // a hand-off to another goroutine of the process
	SleepOne float64 // a sleep of 1 ms
}

// Reading is the server's cost of reading a pipeline and of its answer, without the commands in it.
func (c Costs) Reading() float64 {
	return max(0, c.Separate.Acquire+c.Separate.Release-c.Together.Acquire-c.Together.Release) / 2
}

// Renewal is the server's cost of a renewal, without the reading.
func (c Costs) Renewal(holds int) float64 { return c.RenewCall + float64(holds)*c.RenewHold }

// Pair is the cost of an acquire and of a release.
type Pair struct{ Acquire, Release float64 }

// Point is the measurement of a whole system.
type Point struct {
	Rate      float64 `json:",omitempty"` // acquisitions/s
	P999MS    float64 `json:",omitempty"` // all waits but one in a thousand are shorter
	LongestMS float64 `json:",omitempty"` // the longest wait; where the machine pauses, it is not predicted
	Commands  float64 `json:",omitempty"` // per acquisition, or per second if there are none
	ServerCPU float64 `json:",omitempty"` // % of a core
	ClientCPU float64 `json:",omitempty"`
	TakenPerS float64 `json:",omitempty"` // how quickly the leases were taken
}

// Record is a measurement of everything, on one machine.
type Record struct {
	Machine string
	Costs   Costs
	Points  struct {
		Leases    Point // 100 000 leases, held by one client for a minute
		Processes Point // 4 processes with 4 goroutines each compete for one lock
		Waiters   Point // 256 clients hold one lock in turns, for 1 ms each
	}
}

//go:embed measured.json
var latest []byte

// Latest returns the record in measured.json.
func Latest() Record { return Parse(latest) }

// Parse reads a record.
func Parse(text []byte) (r Record) {
	if err := json.Unmarshal(text, &r); err != nil {
		panic(err)
	}
	return r
}
