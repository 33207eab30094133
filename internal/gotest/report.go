//go:build unix

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// report collects the results of a run of go test.
type report struct {
	out io.Writer

	mu                      sync.Mutex
	packages                map[string]*pack
	passed, failed, skipped int
	slow                    []timed
}

// timed is a test that ended.
type timed struct {
	test string
	took float64 // seconds
}

// pack is a package whose tests run.
type pack struct {
	began    time.Time                   // its first test
	output   map[string]*strings.Builder // by test; "" is the package
	running  map[string]time.Time        // by test: its last sign of life
	reported map[string]bool             // the tests that were reported to hang
	failed   int
}

func newReport(out io.Writer) *report { return &report{out: out, packages: map[string]*pack{}} }

// take notes an event, and prints what it decides.
func (r *report) take(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Action == "":
	case e.Package == "":
		fmt.Fprint(r.out, e.Output) // what a compiler says
	case e.Test != "":
		r.of(e.Package).note(e)
		r.count(e)
	case e.Action == "output":
		r.of(e.Package).write("", e.Output)
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.end(e)
	}
}

func (r *report) of(name string) *pack {
	p := r.packages[name]
	if p == nil {
		p = &pack{output: map[string]*strings.Builder{}, running: map[string]time.Time{}, reported: map[string]bool{}}
		r.packages[name] = p
	}
	return p
}

// note follows one test. The output of a test that passed is dropped.
func (p *pack) note(e event) {
	if p.began.IsZero() {
		p.began = time.Now()
	}
	switch e.Action {
	case "run", "cont":
		p.running[e.Test] = time.Now()
	case "output":
		p.write(e.Test, e.Output)
		if _, runs := p.running[e.Test]; runs {
			p.running[e.Test] = time.Now()
		}
	case "pass", "skip":
		delete(p.output, e.Test)
		fallthrough
	case "pause", "fail":
		delete(p.running, e.Test)
	}
}

func (p *pack) write(test, text string) {
	if p.output[test] == nil {
		p.output[test] = &strings.Builder{}
	}
	p.output[test].WriteString(text)
}

func (r *report) count(e event) {
	if (e.Action == "pass" || e.Action == "fail") && !strings.Contains(e.Test, "/") {
		r.slow = append(r.slow, timed{e.Package + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.of(e.Package).failed++
	case "skip":
		r.skipped++
		fmt.Fprintf(r.out, "skip %s %s\n", e.Package, e.Test)
	}
}

// end prints what became of a package: a line, and all that failed tests and the package
// itself have said.
func (r *report) end(e event) {
	p := r.of(e.Package)
	delete(r.packages, e.Package)
	took := 0.0 // without the time in which it waited for its turn
	if !p.began.IsZero() {
		took = time.Since(p.began).Seconds()
	}
	if e.Action != "fail" {
		fmt.Fprintf(r.out, "%-4s %s %.1fs\n", map[string]string{"pass": "ok", "skip": "none"}[e.Action], e.Package, took)
		return
	}
	if p.failed == 0 {
		r.failed++ // it did not compile, or ended in the middle of a test
	}
	for _, test := range slices.Sorted(maps.Keys(p.output)) {
		fmt.Fprint(r.out, p.output[test])
	}
	fmt.Fprintf(r.out, "FAIL %s %.1fs\n", e.Package, took)
}

// conclude prints the slowest tests and the sums.
func (r *report) conclude(slowest int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.slow, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range r.slow[:min(slowest, len(r.slow))] {
		fmt.Fprintf(r.out, "slow %6.1fs %s\n", t.took, t.test)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

// hanging lists the packages with tests that gave no sign of life for so long, and names
// those tests. Each is listed once.
func (r *report) hanging(long time.Duration) (packages []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, p := range r.packages {
		tests := p.hanging(long)
		if len(tests) > 0 {
			fmt.Fprintf(r.out, "HANGS %s: %s: no sign of life for %v\n", name, strings.Join(tests, ", "), long.Round(time.Second))
			packages = append(packages, name)
		}
	}
	return packages
}

func (p *pack) hanging(long time.Duration) (tests []string) {
	for test, seen := range p.running {
		if time.Since(seen) >= long && !p.reported[test] && !p.hasRunning(test) {
			p.reported[test] = true
			tests = append(tests, test)
		}
	}
	slices.Sort(tests)
	return tests
}

// hasRunning reports whether a test waits for one of its subtests.
func (p *pack) hasRunning(test string) bool {
	for other := range p.running {
		if strings.HasPrefix(other, test+"/") {
			return true
		}
	}
	return false
}

// watch ends the processes of tests that hang, until stop is closed.
func (r *report) watch(commands []*command, hang time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(min(hang/4, 5*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, name := range r.hanging(time.Duration(float64(hang) * slowdown())) {
			quit(commands, name)
		}
	}
}

// slowdown is by how much more there is to do than the machine can do at once; at least 1.
func slowdown() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	load, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		return 1
	}
	return max(1, load/float64(runtime.NumCPU()))
}

// quit makes the test process of a package print its goroutines and end. Where processes
// can't be listed go test is ended instead.
func quit(commands []*command, name string) {
	found := false
	programs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range programs {
		text, err := os.ReadFile(file)
		program, _, _ := strings.Cut(string(text), "\x00")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && path.Base(program) == path.Base(name)+".test" && (startedBy(commands, parent(pid)) || startedBy(commands, parent(parent(pid)))) {
			found = true
			_ = syscall.Kill(pid, syscall.SIGQUIT) // it may have ended by itself
		}
	}
	if !found {
		fmt.Fprintf(os.Stderr, "gotest: the process of %s is not found; ending all\n", name)
		for _, l := range commands {
			_ = l.cmd.Process.Signal(syscall.SIGINT)
		}
	}
}

func startedBy(commands []*command, pid int) bool {
	return slices.ContainsFunc(commands, func(l *command) bool { return l.cmd.Process.Pid == pid })
}

// parent returns the process that started another; 0 if that is not known.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything.
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}
