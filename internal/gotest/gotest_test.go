//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err := run(options{dir: dir, hang: time.Minute, slowest: 3, flags: []string{"-run", "Well"}}, &out); err != nil {
		t.Errorf("a good run fails:\n%s", out.String())
	}
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
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := run(options{dir: dir, hang: time.Minute, serial: []string{"./a", "./b", "./c"}, flags: []string{"-count=5"}}, &out); err != nil {
		t.Error(err)
	}
	wantLines(t, out.String(), "ok   example.com/sample/a ", "ok   example.com/sample/d ", "20 passed, 0 failed, 0 skipped\n")
}

func TestBuildErrorIsShown(t *testing.T) {
	dir := module(t, "func broken( {\n")
	var out strings.Builder
	if run(options{dir: dir, hang: time.Minute}, &out) == nil {
		t.Error("all is well, it says")
	}
	wantLines(t, out.String(), "sample_test.go:3", "FAIL example.com/sample")
}
