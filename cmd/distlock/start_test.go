package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// asCommand makes the test binary behave as the command distlock.
const asCommand = "DISTLOCK_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(testserver.Run(m))
}

// initAllocs is how many allocations the initialisation of a package may make. One regular expression or
// template at package level is beyond it.
const initAllocs = 60

// A run pays for the initialisation of all backends but etcd and S3, also of backends that its URL does not name. So none of
// our packages does notable work there.
func TestStartInitialisesLittle(t *testing.T) {
	line := regexp.MustCompile(`(?m)^init (github\.com/distlock/distlock/(?:backend|cmd|driver|server)\S*) .* (\d+) allocs$`)
	least := map[string]int{} // a map of a few entries makes a different number at each start
	for range 5 {
		nothing := exec.Command(must.Get(os.Executable())(t), "-test.run=^$")
		nothing.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		trace, err := nothing.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, trace)
		}
		for _, f := range line.FindAllStringSubmatch(string(trace), -1) {
			n := must.Get(strconv.Atoi(f[2]))(t)
			if was, known := least[f[1]]; !known || n < was {
				least[f[1]] = n
			}
		}
	}
	if len(least) == 0 {
		t.Fatal("no initialisation was reported")
	}
	for pkg, n := range least {
		if n > initAllocs {
			t.Errorf("%s makes %d allocations when the program starts; want at most %d", pkg, n, initAllocs)
		}
	}
}

// BenchmarkCommandStart measures how long distlock run takes around a command that does nothing, beside flock(1), distlock
// version and a Go program that does nothing. Each round runs all of them, so that a busy machine slows them alike.
// The metrics are milliseconds of time and of the processor, children included.
func BenchmarkCommandStart(b *testing.B) {
	dir := b.TempDir()
	self, nothing := filepath.Join(dir, "distlock"), pathOf(b, "true")
	empty := filepath.Join(dir, "empty.go")
	must.OK(b, os.WriteFile(empty, []byte("package main\n\nfunc main() {}\n"), 0o600))
	b.Setenv("CGO_ENABLED", "0") // as in a release
	for _, program := range []string{".", empty} {
		build(b, dir, "-trimpath", "-ldflags=-s -w", program)
	}
	for _, program := range []string{self, filepath.Join(dir, "empty")} {
		// The kernel maps a program that was written, as by an installation, in larger pieces than what a linker has left.
		must.OK(b, os.WriteFile(program+".new", must.Get(os.ReadFile(program))(b), 0o700))
		must.OK(b, os.Rename(program+".new", program))
	}
	run := func(url string) []string { return []string{self, "--url", url, "run", "name", "--", nothing} }
	contenders := []struct {
		name      string
		argv      []string
		wall, cpu time.Duration
	}{
		{name: "empty", argv: []string{filepath.Join(dir, "empty")}},
		{name: "flock", argv: []string{pathOf(b, "flock"), filepath.Join(dir, "flock"), nothing}},
		{name: "version", argv: []string{self, "version"}},
		{name: "sqlite", argv: run("sqlite:" + filepath.Join(dir, "locks.db"))},
		{name: "redis", argv: run(testserver.SharedRedis(b).URL())},
	}
	for b.Loop() {
		for i := range contenders {
			c := &contenders[i]
			var errors bytes.Buffer
			cmd := exec.Command(c.argv[0], c.argv[1:]...)
			cmd.Stderr = &errors
			began := time.Now()
			if err := cmd.Run(); err != nil {
				b.Fatalf("%s: %v\n%s", c.name, err, &errors)
			}
			c.wall += time.Since(began)
			c.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
	}
	for _, c := range contenders {
		b.ReportMetric(c.wall.Seconds()*1000/float64(b.N), c.name+"-ms")
		b.ReportMetric(c.cpu.Seconds()*1000/float64(b.N), c.name+"-cpu-ms")
	}
}

// pathOf returns the path of a program, or skips the benchmark.
func pathOf(b *testing.B, program string) string {
	b.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		b.Skip(err)
	}
	return path
}

// build builds commands of this module in folder. The arguments are those of go build.
func build(t testing.TB, folder string, args ...string) {
	t.Helper()
	if out, err := exec.Command("go", append([]string{"build", "-o", folder + "/"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
