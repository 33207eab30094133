// Package exampletest runs the examples as processes on real stores.
package exampletest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

const asProgram = "EXAMPLE_AS_PROGRAM"

// Main runs the tests, or, in the processes that Start makes, the program.
func Main(m *testing.M, program func()) {
	if os.Getenv(asProgram) != "" {
		program()
		return
	}
	os.Exit(testserver.Run(m))
}

// OnStores runs a test at the same time with locks in Redis, in PostgreSQL, in etcd, and in a SQLite file.
func OnStores(t *testing.T, test func(t *testing.T, url string)) {
	for name, url := range map[string]func(testing.TB) string{
		"Redis":      func(tb testing.TB) string { return testserver.SharedRedis(tb).URL() + "?prefix=" + tb.Name() + ":" },
		"PostgreSQL": func(tb testing.TB) string { return testserver.SharedPostgres(tb).Database(tb) + "&create=true" },
		"etcd":       func(tb testing.TB) string { return testserver.SharedEtcd(tb).URL() + "/" + tb.Name() },
		"SQLite":     func(tb testing.TB) string { return "sqlite:" + filepath.Join(tb.TempDir(), "locks.db") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, url(t))
		})
	}
}

// Process is a running example.
type Process struct {
	*exec.Cmd
	Lines chan string // what it logs, without the time; closed when it has ended
}

// Start runs the example of the test's package, with variables of the environment, until the test ends.
func Start(t *testing.T, env ...string) *Process {
	t.Helper()
	p := &Process{exec.Command(must.Get(os.Executable())(t)), make(chan string, 10_000)}
	p.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	out := must.Get(p.StderrPipe())(t)
	must.OK(t, p.Cmd.Start())
	go func() {
		defer close(p.Lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.Lines <- lines.Text()[min(len("2006/01/02 15:04:05 "), len(lines.Text())):]
		}
	}()
	t.Cleanup(func() { p.Process.Kill(); p.Wait() })
	return p
}

// Next returns the next line that a process logs.
func (p *Process) Next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.Lines:
		return line
	case <-time.After(3 * time.Minute):
		t.Fatal("it logs nothing")
		return ""
	}
}

// Stop asks a process to end, as a service manager does, and fails the test unless it does so without an error.
func (p *Process) Stop(t *testing.T) {
	t.Helper()
	must.OK(t, p.Process.Signal(os.Interrupt))
	p.End(t)
}

// Fails runs the example of the test's package in a way that must fail, and wants a message.
func Fails(t *testing.T, says string, env ...string) {
	t.Helper()
	if said := Start(t, env...).Fail(t); !strings.Contains(said, says) {
		t.Errorf("it said %q; want %q", said, says)
	}
}

// Fail waits for the end of a process, which must fail.
func (p *Process) Fail(t *testing.T) (said string) {
	t.Helper()
	for line := range p.Lines {
		said += line + "\n"
	}
	if p.Wait() == nil {
		t.Errorf("it ended with 0: %s", said)
	}
	return said
}

// End waits for the end of a process, which must not fail.
func (p *Process) End(t *testing.T) {
	t.Helper()
	for line := range p.Lines {
		t.Log(line)
	}
	must.OK(t, p.Wait())
}
