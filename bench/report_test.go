package bench

import (
	"flag"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/bench/report"
	"github.com/distlock/distlock/internal/testkit/must"
)

var (
	reportFlag = flag.String("report", "", "print a report in Markdown of the scenarios that match this pattern; . is all")
	saveFlag   = flag.Bool("save", false, "put the report's figures into results.json, and make docs/performance.md and bench/RESULTS.md anew")
	roundsFlag = flag.Int("rounds", 3, "the number of rounds in the report")
)

// TestReport prints a table for each scenario. In each round all contenders take turns, so that other
// load on the machine affects all alike. Ratios are computed within a round. Without -report it runs
// nothing.
func TestReport(t *testing.T) {
	pattern := must.Get(regexp.Compile(*reportFlag))(t)
	if *reportFlag == "" {
		if *saveFlag {
			save(t, &report.Results{})
		}
		return
	}
	fmt.Printf("%s, %s, load before %s\n", runtime.Version(), machine(), loadAverage())
	for _, s := range scenarios {
		if !pattern.MatchString(s.name) {
			continue
		}
		r := newRig(t, s.at)
		load := loadAverage()
		measured := s.result(r, interleave(t, r, s), load)
		fmt.Print(report.Table(measured))
		if *saveFlag {
			save(t, &report.Results{Scenarios: []report.Scenario{measured}})
		}
	}
}

// interleave measures every contender once per round, and returns the rounds of each. Every second
// round runs backwards, since work that one contender leaves behind, such as pages to be flushed, slows
// the next one. A peer that failed has one round less.
func interleave(t *testing.T, r *rig, s scenario) map[string][]figures {
	all := map[string][]figures{}
	for n := range *roundsFlag {
		round := map[string]figures{}
		order := slices.Clone(s.contenders)
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			f, err := s.measure(r, c)
			if err == nil {
				round[c.name] = f
				continue
			}
			t.Logf("%s: %s failed in round %d: %v", s.name, c.name, n+1, err)
			if c.ours {
				t.Fail()
			}
		}
		for _, c := range s.contenders {
			if f, ok := round[c.name]; ok {
				all[c.name] = append(all[c.name], s.withRatios(f, c, round))
			}
		}
	}
	return all
}

// sameClient means the bare contender on the same client library.
const sameClient = "raw, same client"

// withRatios adds the ratios of the first figure to the first figures of other contenders in the same
// round.
func (s scenario) withRatios(f figures, c contender, round map[string]figures) figures {
	first := f[0].value
	for _, name := range s.ratios {
		base := name
		if name == sameClient {
			base = c.raw
		}
		ratio := math.NaN()
		if other := round[base]; other != nil {
			ratio = first / other[0].value
		}
		f = append(f, figure{"to " + name, ratio})
	}
	return f
}

func (s scenario) heading(r *rig) string {
	title := s.title
	if v, err := r.version(); err == nil {
		title += ", " + v
	}
	if strings.HasSuffix(s.name, "leases") {
		return fmt.Sprintf("%s: %d for %v, TTL %v", title, r.leases, r.hold, leaseTTL(r.at, r.hold))
	}
	return fmt.Sprintf("%s, %v a round", title, r.time)
}
