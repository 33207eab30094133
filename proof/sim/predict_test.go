package sim

import (
	"fmt"
	"testing"

	"github.com/distlock/distlock/bench/measured"
)

// The predictions come from the costs of single operations, and are compared with whole systems that
// were measured on the same machine.
func TestLongPredictionsAgreeWithMeasurements(t *testing.T) {
	r := measured.Latest()
	leases, processes, waiters := Predict(r.Costs, r.Points.Leases.TakenPerS)
	for _, x := range []struct {
		what              string
		predicted, actual float64
	}{
		{"leases: commands/s", leases.Commands, r.Points.Leases.Commands},
		{"leases: server CPU, %", leases.ServerCPU, r.Points.Leases.ServerCPU},
		{"leases: client CPU, %", leases.ClientCPU, r.Points.Leases.ClientCPU},
		{"processes: acquisitions/s", processes.Rate, r.Points.Processes.Rate},
		{"processes: wait p99.9, ms", processes.P999MS, r.Points.Processes.P999MS},
		{"waiters: acquisitions/s", waiters.Rate, r.Points.Waiters.Rate},
		{"waiters: commands per acquisition", waiters.Commands, r.Points.Waiters.Commands},
		{"waiters: wait p99.9, ms", waiters.P999MS, r.Points.Waiters.P999MS},
	} {
		line := fmt.Sprintf("%s: predicted %.4g, measured %.4g", x.what, x.predicted, x.actual)
		if !near(x.predicted, x.actual, .15) {
			t.Error(line)
		} else {
			t.Log(line)
		}
	}
}
