// Package bench measures distlock side by side with other lock libraries for Redis
// and with the bare commands that each of them is made of: on one private server, in
// one run, in rounds that take turns.
//
// README.md says how to run and how to read them.
//
// A contender is an adapter behind one small interface; a scenario measures one
// contender once and answers with figures. The benchmarks and the report are two ways
// to call the same scenarios.
package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

var (
	forFlag    = flag.Duration("for", 50*time.Millisecond, "how long one measurement takes")
	leasesFlag = flag.Int("leases", 1000, "how many leases are held in the scenario of many leases")
	holdFlag   = flag.Duration("hold", 2*time.Second, "for how long they are held")
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := runChild(spec); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	testserver.OnDisk = true
	os.Exit(testserver.Run(m))
}

// newRig starts a coordinator, unless one of its kind runs already.
func newRig(tb testing.TB, at string) *rig {
	tb.Helper()
	return &rig{at, coordinators[at](tb), settings{time: *forFlag, leases: *leasesFlag, hold: *holdFlag}}
}

// metricUnit is a figure's name as a unit of package testing, which has no spaces.
func metricUnit(name string) string { return strings.ReplaceAll(name, " ", "-") }
