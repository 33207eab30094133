package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }

const module = "github.com/distlock/distlock/"

// An uncontended Lock and Unlock runs few statements of this project, in few files: a maintainer who follows it reads these.
func TestLongStatements(t *testing.T) {
	program := filepath.Join(t.TempDir(), "statements")
	output(t, exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"...", "-o", program, "."))
	for _, b := range []struct {
		name string
		url  func() string
	}{
		{"Redis", func() string { return testserver.SharedRedis(t).URL() }},
		{"etcd", func() string { return testserver.SharedEtcd(t).URL() }},
		{"PostgreSQL", func() string { return testserver.SharedPostgres(t).Database(t) + "&create=true" }},
		{"SQLite", func() string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") }},
	} {
		files := statements(t, program, b.url())
		total := 0
		for _, n := range files {
			total += n
		}
		if total == 0 {
			t.Errorf("%s: no statements ran", b.name)
		}
		fmt.Printf("%-10s %d statements in %d files\n", b.name, total, len(files))
		if testing.Verbose() {
			print(files)
		}
	}
}

// statements runs the program, and returns how many statements of each file ran in one pair. Of several runs it takes the one
// with the fewest: what is due once in a while happened beside the others.
func statements(t *testing.T, program, url string) map[string]int {
	var fewest map[string]int
	for range 5 {
		ran := measure(t, program, url)
		if fewest == nil || sum(ran) < sum(fewest) {
			fewest = ran
		}
	}
	return fewest
}

func sum(files map[string]int) (total int) {
	for _, n := range files {
		total += n
	}
	return total
}

func measure(t *testing.T, program, url string) map[string]int {
	counts := t.TempDir()
	cmd := exec.Command(program, url, counts)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+t.TempDir()) // of the whole run, which nobody reads
	output(t, cmd)
	profile := filepath.Join(counts, "profile")
	output(t, exec.Command("go", "tool", "covdata", "textfmt", "-i="+counts, "-o="+profile))
	text := must.Get(os.ReadFile(profile))(t)
	files := map[string]int{}
	for block := range strings.Lines(string(text)) {
		var at string
		var n, count int
		if _, err := fmt.Sscan(block, &at, &n, &count); err == nil && count > 0 {
			file, _, _ := strings.Cut(strings.TrimPrefix(at, module), ":")
			files[file] += n
		}
	}
	delete(files, "proof/statements/main.go")
	return files
}

func output(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// print lists files, those with the most statements first.
func print(files map[string]int) {
	names := slices.SortedFunc(maps.Keys(files), func(a, b string) int {
		return cmp.Or(cmp.Compare(files[b], files[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		fmt.Printf("  %4d  %s\n", files[name], name)
	}
}
