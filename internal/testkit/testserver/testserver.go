// Package testserver starts real coordinators for tests and benchmarks: as child
// processes, on free ports of the loopback interface, with their data in a
// temporary folder.
//
//	srv := testserver.SharedRedis(t)     // one for the whole test process
//	b, err := redislock.Open(ctx, srv.URL())
//
//	srv := testserver.Redis(t)           // one of its own, to be killed and paused
//	srv.Kill()
//	srv.Start()
//
// Several servers that belong together are a group:
//
//	g := testserver.RedisSentinel(t, testserver.RedisOptions{})   // or RedisCluster
//	old := g.Master()
//	old.Kill()
//	now := g.AwaitFailover(old)
//
// A server counts as started when it answers its protocol, and ends with its test,
// or with the test process, however that dies.
//
// # Finding the programs
//
// The program is the one named by DISTLOCK_TEST_REDIS=/path/to/redis-server (and so
// on for other coordinators), or else one in the usual places. Tests install nothing:
// [Provide], which make servers runs, does.
//
// Without the program the test is skipped and says why; on CI (CI=true) and where
// DISTLOCK_TEST_REQUIRE asks for the coordinator ("redis", "redis,etcd", "all") it
// fails instead: a test that never runs proves nothing.
//
// Each coordinator is one file: what it is called, how its process is started, how
// it shows that it is ready. Everything else is shared.
package testserver

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// exits is what remains to be done when the test process ends.
var exits struct {
	sync.Mutex
	stop    []func()
	skipped []string
}

// Run runs the tests of a package, stops the shared servers, and says last which
// coordinators were missing:
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }
//
// Packages without a TestMain work too: where the system can tie a child's life to
// its parent's, the servers die with the test process.
//
// Eight parallel tests run at once, unless -parallel says otherwise: most of the time they wait.
func Run(m *testing.M) int {
	if err := flag.Set("test.parallel", "8"); err != nil { // m.Run parses the command line afterwards
		panic(err)
	}
	code := m.Run()
	exits.Lock()
	defer exits.Unlock()
	for _, stop := range exits.stop {
		stop()
	}
	exits.stop = nil
	if len(exits.skipped) > 0 {
		fmt.Fprintf(os.Stderr, "testserver: skipped for want of a server: %s\n", strings.Join(exits.skipped, ", "))
	}
	return code
}

func atExit(stop func()) {
	exits.Lock()
	defer exits.Unlock()
	exits.stop = append(exits.stop, stop)
}

// missing ends a test whose coordinator can't be had.
func missing(tb testing.TB, coordinator string, err error) {
	tb.Helper()
	if required(coordinator) {
		tb.Fatalf("testserver: %s is required here and missing: %v", coordinator, err)
	}
	exits.Lock()
	if !slices.Contains(exits.skipped, coordinator) {
		exits.skipped = append(exits.skipped, coordinator)
	}
	exits.Unlock()
	tb.Skipf("testserver: no %s: %v", coordinator, err)
}

func required(coordinator string) bool {
	if os.Getenv("CI") == "true" {
		return true
	}
	asked := strings.Split(os.Getenv("DISTLOCK_TEST_REQUIRE"), ",")
	return slices.Contains(asked, "all") || slices.Contains(asked, coordinator)
}
