//go:build linux

package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// make test runs the packages whose tests start clusters one after the other.
func TestClustersAreSerial(t *testing.T) {
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	_, list, _ := strings.Cut(string(makefile), "\nSERIAL = ")
	list, _, _ = strings.Cut(strings.ReplaceAll(list, "\\\n", " "), "\n")
	cluster := regexp.MustCompile(`testserver\.(Shared)?(RedisCluster|RedisSentinel|EtcdCluster|ZooKeeperCluster)\(`)
	found := 0
	for dir, text := range testsOfPackages(t) {
		if !cluster.MatchString(text) {
			continue
		}
		found++
		if !slices.Contains(strings.Fields(list), dir) {
			t.Errorf("the tests of %s start a cluster, and the Makefile's SERIAL does not have it: %s", dir, list)
		}
	}
	if found < 5 {
		t.Errorf("%d packages start clusters; this test looks for the wrong thing", found)
	}
}

// Packages whose tests share servers end them, and remove their data.
func TestSharedServersAreEnded(t *testing.T) {
	shared := regexp.MustCompile(`testserver\.Shared`)
	found := 0
	for dir, text := range testsOfPackages(t) {
		if !shared.MatchString(text) {
			continue
		}
		found++
		if !strings.Contains(text, "testserver.Run(m)") && !strings.Contains(text, "exampletest.Main(m,") { // which calls it
			t.Errorf("the tests of %s share servers; want func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }", dir)
		}
	}
	if found < 5 {
		t.Errorf("%d packages share servers; this test looks for the wrong thing", found)
	}
}

// testsOfPackages returns the text of all test files of each package, by its folder.
func testsOfPackages(t *testing.T) map[string]string {
	t.Helper()
	root := must.Get(os.Getwd())(t)
	root = strings.TrimSuffix(root, "/internal/gotest")
	cmd := exec.Command("go", "list", "-f", `{{.Dir}} {{range .TestGoFiles}}{{.}} {{end}}{{range .XTestGoFiles}}{{.}} {{end}}`, "work")
	cmd.Dir = root
	packages := must.Get(cmd.Output())(t)
	texts := map[string]string{}
	for line := range strings.Lines(string(packages)) {
		fields := strings.Fields(line)
		dir := "." + strings.TrimPrefix(fields[0], root)
		for _, name := range fields[1:] {
			text := must.Get(os.ReadFile(fields[0] + "/" + name))(t)
			texts[dir] += string(text)
		}
	}
	return texts
}
