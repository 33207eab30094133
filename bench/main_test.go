// Package bench compares distlock with other lock libraries, and with the bare commands that each of
// them uses: on one private server, in one run, in alternating rounds.
//
// README.md explains how to run the benchmarks and how to read the results.
//
// A contender is an adapter behind one small interface. A scenario measures one contender once, and
// returns figures. The benchmarks and the report call the same scenarios.
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
	holdFlag   = flag.Duration("hold", 2*time.Second, "how long they are held")
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
	code := testserver.Run(m)
	os.Remove(cliPath())
	os.Exit(code)
}

// newRig starts a coordinator, unless one of its kind is already running.
func newRig(tb testing.TB, at string) *rig {
	tb.Helper()
	return &rig{at, coordinators[at](tb), settings{time: *forFlag, leases: *leasesFlag, hold: *holdFlag}}
}

// metricUnit returns a figure's name as a unit of package testing, which has no spaces.
func metricUnit(name string) string { return strings.ReplaceAll(name, " ", "-") }
