// Package tlc runs TLC, which checks specifications in TLA+.
package tlc

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// Run is a specification that is to be checked.
type Run struct {
	Dir     string            // has the specification and the modules that it extends
	Spec    string            // its name
	Config  string            // the text of its .cfg file
	Modules map[string]string // generated ones, by their names
	Large   bool              // it has more than a million states
}

// Result is a result of TLC.
type Result struct{ Output string }

// Accepted reports whether all promises hold in all states.
func (r Result) Accepted() bool { return strings.Contains(r.Output, "No error has been found") }

// Violates reports whether a promise does not hold.
func (r Result) Violates(promise string) bool {
	return regexp.MustCompile(`(?m)^Error: (Invariant|Action property) ` + promise + ` is violated`).MatchString(r.Output)
}

var states = regexp.MustCompile(`\d+ states generated, \d+ distinct states found`)

// States says how many states TLC has seen.
func (r Result) States() string { return states.FindString(r.Output) }

// Check runs TLC. It fails the test if TLC can't run, or if the specification is wrong.
func Check(t *testing.T, run Run) Result {
	t.Helper()
	java, jar := testserver.Tool(t, "java"), testserver.TLC(t)
	dir := t.TempDir()
	sources, err := filepath.Glob(filepath.Join(run.Dir, "*.tla"))
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		b, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, filepath.Base(source), string(b))
	}
	for name, text := range run.Modules {
		write(t, dir, name+".tla", text)
	}
	write(t, dir, "run.cfg", run.Config)
	// Most runs last for seconds: a quick start counts for more than quick code.
	options := []string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	if run.Large {
		options = []string{"-Xmx4g", "-XX:+UseParallelGC"}
	}
	// TLC copies modules of its own there, and removes them at the end: runs beside each other need one each.
	options = append(options, "-Djava.io.tmpdir="+dir, "-cp", jar, "tlc2.TLC", "-workers", "1", "-metadir", dir, "-config", "run.cfg", run.Spec)
	cmd := exec.Command(java, options...)
	var out strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	err = testserver.Spawn(cmd) // it must not outlive a test that hangs
	if err == nil {
		err = cmd.Wait()
	}
	r := Result{out.String()}
	if err != nil && !strings.Contains(r.Output, "is violated") {
		t.Fatalf("TLC: %v\n%s", err, r.Output)
	}
	return r
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
