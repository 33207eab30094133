//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(turnEnv); file != "" {
		os.Exit(takeTurn(file, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// module makes a module with one test file.
func module(t *testing.T, test string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/sample\n\ngo 1.23\n", "sample_test.go": "package sample\n\n" + test,
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

// A test that hangs is named, with its goroutines; the others are reported as they ended.
func TestHangingTestIsNamed(t *testing.T) {
	dir := module(t, `import "testing"

func TestWell(t *testing.T) {}

func TestStuck(t *testing.T) {
	t.Run("inside", func(t *testing.T) { waitForEver() })
}

func waitForEver() { <-make(chan int) }
`)
	var out strings.Builder
	for _, serial := range [][]string{nil, {"."}} {
		out.Reset()
		if run(options{dir: dir, hang: 2 * time.Second, serial: serial}, &out) == nil {
			t.Error("all is well, it says")
		}
		wantLines(t, out.String(), "HANGS example.com/sample: TestStuck/inside: no sign of life for ", "sample.waitForEver", "FAIL example.com/sample ", "1 passed, 1 failed, 0 skipped")
	}
}

func TestReportOfARun(t *testing.T) {
	dir := module(t, `import "testing"

func TestWell(t *testing.T)    { t.Log("no one wants to read this") }
func TestBad(t *testing.T)     { t.Error("what went wrong") }
func TestSkipped(t *testing.T) { t.Skip() }
`)
	var out strings.Builder
	if run(options{dir: dir, hang: time.Minute}, &out) == nil {
		t.Error("all is well, it says")
	}
	wantLines(t, out.String(), "what went wrong", "skip example.com/sample TestSkipped", "1 passed, 1 failed, 1 skipped\n")
	if strings.Contains(out.String(), "no one wants") {
		t.Errorf("it prints what a good test said:\n%s", out.String())
	}
	out.Reset()
	expect.OK(t, run(options{dir: dir, hang: time.Minute, slowest: 3, flags: []string{"-run", "Well"}}, &out), "a good run fails:\n", out.String())
	wantLines(t, out.String(), "ok   example.com/sample ", "slow ", "s example.com/sample TestWell\n", "1 passed, 0 failed, 0 skipped\n")
}

// The packages of -serial are never beside each other, the rest is beside them.
func TestSerialPackages(t *testing.T) {
	dir := t.TempDir()
	test := `package x

import (
	"net"
	"testing"
	"time"
)

func TestAlone(t *testing.T) {
	l, err := net.Listen("unix", "../one")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	l.Close()
}
`
	files := map[string]string{"go.mod": "module example.com/sample\n\ngo 1.23\n", "d/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestBeside(t *testing.T) {}\n"}
	for _, p := range []string{"a", "b", "c"} {
		files[p+"/x_test.go"] = test
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	var out strings.Builder
	expect.OK(t, run(options{dir: dir, hang: time.Minute, serial: []string{"./a", "./b", "./c"}, flags: []string{"-count=5"}}, &out))
	wantLines(t, out.String(), "ok   example.com/sample/a ", "ok   example.com/sample/d ", "20 passed, 0 failed, 0 skipped\n")
}

// A second package runs only while a processor is idle, and a third one never does.
func TestSecondTurn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rest")
	var seconds atomic.Int64
	isIdle := func() time.Duration { return time.Duration(seconds.Add(1)) * time.Second }
	isBusy := func() time.Duration { return 0 }
	turns := make(chan *os.File, 5)
	take := func(second bool, idle func() time.Duration) {
		f, err := awaitTurn(file, second, idle)
		expect.OK(t, err)
		turns <- f
	}
	take(true, isBusy)
	go take(true, isBusy)
	go take(false, isIdle)
	time.Sleep(2 * time.Second)
	expect.Equal(t, len(turns), 1, "a package runs beside another one, and no processor is idle or none may")
	take(true, isIdle)
	go take(true, isIdle)
	time.Sleep(2 * time.Second)
	expect.Equal(t, len(turns), 2, "three packages run beside each other")
	for range cap(turns) {
		(<-turns).Close()
	}
}

func TestBuildErrorIsShown(t *testing.T) {
	dir := module(t, "func broken( {\n")
	var out strings.Builder
	if run(options{dir: dir, hang: time.Minute}, &out) == nil {
		t.Error("all is well, it says")
	}
	wantLines(t, out.String(), "sample_test.go:3", "FAIL example.com/sample")
}
