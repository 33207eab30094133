//go:build linux

package chaos

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/proof/internal/judge"
)

// result is the sum of a cell's runs. Times are in seconds.
type result struct {
	Cell        string
	Promise     promise
	Rounds      int // of the fault
	Holds       int
	Overlaps    int // holds that began while another holder could trust its lease
	Believed    int // holds that began while another holder had not seen yet that its lease had ended
	FenceFaults int
	Updates
	Gap     float64 // without a grant
	Healed  float64 // the longest time from the end of a fault to the next grant
	Stall   float64 // the longest time that the machine did not let a worker run
	Seconds float64
}

const (
	resultsFile = "results.json"
	rowsPage    = "../RESULTS.md"        // has a row for each cell
	sumsPage    = "../../docs/faults.md" // has a row for each deployment
	beginMark   = "<!-- chaos: written by make chaos -->\n"
	endMark     = "<!-- /chaos -->\n"
)

var (
	saves  = flag.Bool("save", false, "write the tables in proof/RESULTS.md and docs/faults.md anew from results.json")
	saving sync.Mutex
)

func load(t *testing.T) map[string]result {
	results := map[string]result{}
	text, err := os.ReadFile(resultsFile)
	if os.IsNotExist(err) {
		return results
	}
	if err == nil {
		err = json.Unmarshal(text, &results)
	}
	must.OK(t, err)
	return results
}

// save adds a result to the result of earlier runs in results.json. A cell that failed has none, not even an old one.
func save(t *testing.T, r result) {
	saving.Lock()
	defer saving.Unlock()
	results := load(t)
	results[r.Cell] = r.with(results[r.Cell])
	if t.Failed() {
		delete(results, r.Cell)
	}
	text, err := json.MarshalIndent(results, "", "\t")
	if err == nil {
		err = os.WriteFile(resultsFile, append(text, '\n'), 0o644)
	}
	expect.OK(t, err)
}

// with returns what both runs of a cell have shown. Runs under another promise do not count.
func (r result) with(earlier result) result {
	if earlier.Promise != r.Promise {
		return r
	}
	r.Rounds += earlier.Rounds
	r.Holds += earlier.Holds
	r.Overlaps += earlier.Overlaps
	r.Believed += earlier.Believed
	r.FenceFaults += earlier.FenceFaults
	r.Done += earlier.Done
	r.Lost += earlier.Lost
	r.LostLate += earlier.LostLate
	r.LostFenced += earlier.LostFenced
	r.Refused += earlier.Refused
	r.Gap = max(r.Gap, earlier.Gap)
	r.Healed = max(r.Healed, earlier.Healed)
	r.Stall = max(r.Stall, earlier.Stall)
	r.Seconds += earlier.Seconds
	return r
}

// round returns seconds with two digits after the point.
func round(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}

// keep writes a history that failed where it can be looked at.
func keep(t *testing.T, holds []judge.Hold) string {
	text, err := json.Marshal(holds)
	if err != nil {
		return err.Error()
	}
	path := filepath.Join(os.TempDir(), "distlock-chaos-"+filepath.Base(t.Name())+".json")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err.Error()
	}
	return path
}

// table returns the results as a table with a row for each cell.
func table(results map[string]result) string {
	var b strings.Builder
	holds, faults := 0, 0
	for _, c := range allCells() {
		holds, faults = holds+results[c.id()].Holds, faults+results[c.id()].Rounds
	}
	fmt.Fprintf(&b, "In all, locks were held %d times, under %d faults.\n\n", holds, faults)
	b.WriteString("| deployment | what fails | promise | times held | overlaps | fence faults | lost updates: without / with fence | longest gap |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, c := range allCells() {
		fmt.Fprintf(&b, "| %s | %s | %s | ", c.title, c.what, c.promise)
		if r, ok := results[c.id()]; ok {
			fmt.Fprintf(&b, "%d | %d | %d | %d / %d | %.1f s |\n", r.Holds, r.Overlaps, r.FenceFaults, r.Lost, r.LostFenced, r.Gap)
		} else {
			b.WriteString("not run | | | | |\n")
		}
	}
	return b.String()
}

// sums returns the results as a table with a row for each deployment.
func sums(results map[string]result) string {
	var all result
	var order []string
	faults, of := map[string]int{}, map[string]result{}
	for _, c := range allCells() {
		r, ok := results[c.id()]
		if !ok {
			continue
		}
		if faults[c.title]++; faults[c.title] == 1 {
			order = append(order, c.title)
		}
		r.Promise = ""
		of[c.title], all = r.with(of[c.title]), r.with(all)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "In all, locks were held %d times, under %d faults.\n\n", all.Holds, all.Rounds)
	b.WriteString("| deployment | kinds of faults | times held | overlaps | fence faults | lost updates: without / with fence |\n")
	b.WriteString("|---|---|---|---|---|---|\n")
	for _, title := range order {
		r := of[title]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d / %d |\n", title, faults[title], r.Holds, r.Overlaps, r.FenceFaults, r.Lost, r.LostFenced)
	}
	return b.String()
}

// The pages have the tables of the results; with -save they are written: go test -run TestReport -save.
func TestReport(t *testing.T) {
	results := load(t)
	inPage(t, rowsPage, table(results))
	inPage(t, sumsPage, sums(results))
}

func inPage(t *testing.T, page, text string) {
	t.Helper()
	old := must.Get(os.ReadFile(page))(t)
	before, rest, begins := strings.Cut(string(old), beginMark)
	now, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", page)
	}
	if now == text {
		return
	}
	if !*saves {
		t.Fatalf("the table in %s is not that of %s: go test -run TestReport -save", page, resultsFile)
	}
	must.OK(t, os.WriteFile(page, []byte(before+beginMark+text+endMark+after), 0o644))
}

func TestRunsAreAddedUp(t *testing.T) {
	one := result{
		Cell: "c", Promise: safe, Rounds: 1, Holds: 2, Overlaps: 3, Believed: 4, FenceFaults: 5,
		Updates: Updates{Done: 6, Lost: 7, LostLate: 8, LostFenced: 9, Refused: 10}, Gap: 11, Healed: 12, Stall: 13, Seconds: 14,
	}
	both := result{
		Cell: "c", Promise: safe, Rounds: 2, Holds: 4, Overlaps: 6, Believed: 8, FenceFaults: 10,
		Updates: Updates{Done: 12, Lost: 14, LostLate: 16, LostFenced: 18, Refused: 20}, Gap: 11, Healed: 12, Stall: 13, Seconds: 28,
	}
	expect.Equal(t, one.with(one), both)
	other := one
	other.Promise = withFences
	expect.Equal(t, one.with(other), one, "under another promise")
}
