package bench

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/bench/report"
	"github.com/distlock/distlock/internal/testkit/must"
)

// root is the project's folder.
const root = ".."

// save adds figures to the figures of other scenarios. It is called after each scenario, so that a run that
// is ended keeps what it has measured.
func save(t *testing.T, news *report.Results) {
	t.Helper()
	all := must.Get(report.Read(root + "/" + report.ResultsFile))(t)
	for _, s := range news.Scenarios {
		all.Put(s)
	}
	must.OK(t, all.Write(root))
}

// result returns the measurements of a scenario, for the document.
func (s scenario) result(r *rig, rounds map[string][]figures, load string) report.Scenario {
	server, _ := r.version()
	out := report.Scenario{
		Name: s.name, Title: s.heading(r), Server: server, Load: load, Rounds: *roundsFlag,
		Machine: machine(), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly), Commit: commit(),
	}
	if before, after, ok := strings.Cut(out.Title, ", "+server); ok {
		out.Title = before + after
	}
	for _, c := range s.contenders {
		if len(rounds[c.name]) == 0 {
			continue
		}
		row := report.Row{Contender: c.name}
		for _, f := range over(rounds[c.name]) {
			row.Figures = append(row.Figures, report.Figure{Name: f.name, Value: report.Value(f.value)})
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

func machine() string {
	cpu, system := "", runtime.GOOS
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(name, "model name") {
			cpu = strings.TrimSpace(model) + ", "
			break
		}
	}
	for line := range strings.Lines(read("/etc/os-release")) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			system = strings.Trim(name, "\"\n")
		}
	}
	return fmt.Sprintf("%s%d cores, %s (%s)", cpu, runtime.NumCPU(), system, runtime.GOARCH)
}

func loadAverage() string {
	first, _, _ := strings.Cut(read("/proc/loadavg"), " ")
	return first
}

func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// commit is the commit that was measured, as far as git knows it.
func commit() string {
	out, _ := exec.Command("git", "rev-parse", "--short=9", "HEAD").Output()
	return strings.TrimSpace(string(out))
}
