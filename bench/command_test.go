package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// command is the start of a command under a lock, beside what shell scripts do.
var command = scenario{
	name: onRedis + "/command", at: onRedis, measure: measureCommand,
	title: "A command under a lock: `true`, one run after the other",
	contenders: []contender{
		{name: "flock"},
		{name: "distlock run, SQLite", ours: true},
		{name: "a script with redis-cli SET NX"},
		{name: "distlock run, Redis", ours: true},
	},
}

// cli is the command, built once, in the way of a release.
var cli = sync.OnceValues(func() (string, error) {
	path := cliPath()
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/distlock/distlock/cmd/distlock")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// cliPath is where cli is. TestMain removes it.
func cliPath() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("distlock-bench-%d", os.Getpid()))
}

// script takes and releases a lock, as far as a script can. It has neither fences nor renewal.
const script = `[ "$(redis-cli -h $0 -p $1 SET bench:script $$ NX PX 30000)" = OK ] && { true; redis-cli -h $0 -p $1 DEL bench:script; }`

func commandLine(r *rig, c contender, dir string) ([]string, error) {
	host, port, _ := strings.Cut(r.Addr(), ":")
	switch c.name {
	case "flock":
		return []string{"flock", filepath.Join(dir, "file"), "true"}, nil
	case "a script with redis-cli SET NX":
		return []string{"sh", "-c", script, host, port}, nil
	}
	url := "redis://" + r.Addr()
	if strings.HasSuffix(c.name, "SQLite") {
		url = "sqlite:" + filepath.Join(dir, "locks.db")
	}
	path, err := cli()
	return []string{path, "run", "--url", url, "bench:command", "--", "true"}, err
}

func measureCommand(r *rig, c contender) (figures, error) {
	const atLeast = 5
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	line, err := commandLine(r, c, dir)
	if err != nil {
		return nil, err
	}
	var times histogram
	var used time.Duration
	n := 0
	for end := time.Now().Add(r.time); n < atLeast || time.Now().Before(end); n++ {
		cmd := exec.Command(line[0], line[1:]...)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", line, err, out)
		}
		times.add(time.Since(start))
		used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return figures{
		{"p50-ms", millis(times.quantile(.5))},
		{"p99-ms", millis(times.quantile(.99))},
		{"CPU-ms", millis(used) / float64(n)},
		{"samples", float64(n)},
	}, nil
}
