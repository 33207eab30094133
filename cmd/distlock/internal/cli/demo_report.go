package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"
)

// day is what came of one run of the demo.
type day struct {
	stock  int
	took   time.Duration
	fences []uint64 // of the sales, in their order
	visits []visit  // under the lock
}

func (d *day) sold() int { return len(d.fences) }

func (d *day) oversold() int { return max(0, d.sold()-d.stock) }

// fencesIncrease reports whether each sale has a greater fence than the one before.
func (d *day) fencesIncrease() bool {
	last := uint64(0)
	for _, f := range d.fences {
		if f <= last {
			return false
		}
		last = f
	}
	return true
}

// wait is a percentile of the time from asking for the lock to having it.
func (d *day) wait(percent int) time.Duration {
	if len(d.visits) == 0 {
		return 0
	}
	var waits []int64
	for _, v := range d.visits {
		waits = append(waits, v.Got-v.Asked)
	}
	slices.Sort(waits)
	return time.Duration(waits[(len(waits)-1)*percent/100])
}

// tally is one run in the JSON of the demo.
type tally struct {
	Stock    int `json:"stock"`
	Sold     int `json:"sold"`
	Oversold int `json:"oversold"`
}

// lockedTally is the run with the lock.
type lockedTally struct {
	tally
	FencesIncreasing bool `json:"fences_increasing"`
}

func (d *day) tally() tally { return tally{d.stock, d.sold(), d.oversold()} }

func (a *app) printTallies(o *demoOptions, without, with *day) error {
	if o.json {
		return json.NewEncoder(a.out).Encode(struct {
			Without tally       `json:"without_lock"`
			With    lockedTally `json:"with_lock"`
		}{without.tally(), lockedTally{with.tally(), with.fencesIncrease()}})
	}
	a.printf("A shop with %d items; %d processes with %d buyers each.\n\n", o.stock, o.processes, o.workers)
	t := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\twithout a lock\twith a lock")
	fmt.Fprintf(t, "sold\t%d\t%d\n", without.sold(), with.sold())
	fmt.Fprintf(t, "oversold\t%d\t%d\n", without.oversold(), with.oversold())
	fmt.Fprintf(t, "time\t%s\t%s\n", short(without.took), short(with.took))
	fmt.Fprintf(t, "lock wait, p50\t-\t%s\n", fine(with.wait(50)))
	fmt.Fprintf(t, "lock wait, p99\t-\t%s\n", fine(with.wait(99)))
	fmt.Fprintf(t, "fences increase\t-\t%s\n", yes(with.fencesIncrease()))
	return t.Flush()
}

// fine is a short time for people.
func fine(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
