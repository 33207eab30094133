//go:build linux

package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Packages whose tests start clusters are those that make test runs one after the other.
func TestClustersAreSerial(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(makefile), "\nSERIAL = ")
	list, _, _ = strings.Cut(strings.ReplaceAll(list, "\\\n", " "), "\n")
	cmd := exec.Command("go", "list", "-f", `{{.Dir}} {{range .TestGoFiles}}{{.}} {{end}}{{range .XTestGoFiles}}{{.}} {{end}}`, "work")
	cmd.Dir = "../.."
	packages, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root = strings.TrimSuffix(root, "/internal/gotest")
	cluster := regexp.MustCompile(`testserver\.(Shared)?(RedisCluster|RedisSentinel|EtcdCluster|ZooKeeperCluster)\(`)
	found := 0
	for line := range strings.Lines(string(packages)) {
		fields := strings.Fields(line)
		for _, name := range fields[1:] {
			text, err := os.ReadFile(fields[0] + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if !cluster.Match(text) {
				continue
			}
			found++
			if dir := "." + strings.TrimPrefix(fields[0], root); !slices.Contains(strings.Fields(list), dir) {
				t.Errorf("%s/%s starts a cluster, and the Makefile's SERIAL has no %s: %s", dir, name, dir, list)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d files start clusters; this test looks for the wrong thing", found)
	}
}
