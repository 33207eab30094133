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
// make servers does.
//
// Without the program the test is skipped and says why; on CI (CI=true) and where
// DISTLOCK_TEST_REQUIRE asks for the coordinator ("redis", "redis,etcd", "all") it
// fails instead: a test that never runs proves nothing.
//
// Each coordinator is one file: its name, how its process is started, how
// it shows that it is ready. Everything else is shared.
package testserver

import (
	"cmp"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testcert"
)

// exits is the work left for the end of the test process.
var exits struct {
	sync.Mutex
	stop    []func()
	skipped []string
}

// Run runs the tests of a package, stops the shared servers, and reports missing coordinators:
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Run(m)) }
//
// Packages without a TestMain work too: where the system can tie a child's life to
// its parent's, the servers die with the test process.
//
// Eight parallel tests run at once, unless -parallel is given: they mostly wait.
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

// OnDisk keeps the data of servers on the disk, for benchmarks. Otherwise they are in memory if there
// is room: servers flush all that they promise to keep, which a disk shared by many servers makes slow.
// TMPDIR, if it is set, goes before both.
var OnDisk bool

// newDir makes a folder for the data of a server.
func newDir(kind string) (string, error) {
	parent := ""
	if !OnDisk && os.Getenv("TMPDIR") == "" {
		parent = memoryDir()
	}
	return os.MkdirTemp(parent, "distlock-"+kind+"-")
}

// missing ends a test whose coordinator is not installed.
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

// program is an executable that a coordinator needs.
type program struct {
	name   string // as found in PATH or in one of programDirs
	cached string // where it is in place of these: see provided
	env    string // environment variable that overrides it
	debian string // package that holds it
}

// programDirs are where Debian has programs that may not be in PATH.
var programDirs = []string{
	"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin",
	"/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/15/bin", "/usr/local/pgsql/bin",
}

// find returns the path of the program.
func (p *program) find() (string, error) {
	if p.cached != "" {
		home, err := provided(p.cached)
		return filepath.Join(home, p.name), err
	}
	if path := os.Getenv(p.env); path != "" {
		return exec.LookPath(path)
	}
	for _, dir := range append([]string{""}, programDirs...) {
		if path, err := exec.LookPath(filepath.Join(dir, p.name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in PATH nor named by %s; run make servers, or install it (Debian: package %s)", p.name, p.env, p.debian)
}

// must is find for a test that ends without the program.
func (p *program) must(tb testing.TB, coordinator string) string {
	tb.Helper()
	path, err := p.find()
	if err != nil {
		missing(tb, coordinator, err)
	}
	return path
}

// provided returns the path of something that is no Debian package, which make servers puts into a
// cache.
func provided(name string) (string, error) {
	_, here, _, _ := runtime.Caller(0)
	out, err := exec.Command("bash", filepath.Join(filepath.Dir(here), "..", "servers.sh"), "path", name).Output()
	path := strings.TrimSpace(string(out))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w; run make servers", name, err)
	}
	return path, nil
}

// tools are programs beside the servers that tests run.
var tools = map[string]*program{
	"java":    java,
	"javac":   {name: "javac", env: "DISTLOCK_TEST_JAVAC", debian: "default-jdk-headless"},
	"node":    {name: "node", env: "DISTLOCK_TEST_NODE", debian: "nodejs"},
	"npm":     {name: "npm", env: "DISTLOCK_TEST_NPM", debian: "npm"},
	"python3": {name: "python3", env: "DISTLOCK_TEST_PYTHON", debian: "python3"},
	"curl":    {name: "curl", env: "DISTLOCK_TEST_CURL", debian: "curl"},
	"nginx":   {name: "nginx", env: "DISTLOCK_TEST_NGINX", debian: "nginx-light"},

	"promtool":   {name: "promtool", env: "DISTLOCK_TEST_PROMTOOL", debian: "prometheus"},
	"prometheus": {name: "prometheus", env: "DISTLOCK_TEST_PROMETHEUS", debian: "prometheus"},
}

// Tool returns the path of one of the programs of tools, such as java, curl or prometheus.
func Tool(tb testing.TB, name string) string {
	tb.Helper()
	return tools[name].must(tb, name)
}

// RedisPy returns the path of a Python 3 that has redis-py.
func RedisPy(tb testing.TB) string {
	tb.Helper()
	for _, python := range []string{cmp.Or(os.Getenv("DISTLOCK_TEST_PYTHON"), "python3"), "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import redis").Run() == nil {
			return python
		}
	}
	missing(tb, "redis-py", errors.New("no Python has it; run make servers, or install it (Debian: package python3-redis)"))
	return ""
}

// shared is a server that all tests of the process use: the first test that needs it starts it, and
// it ends with the process.
type shared[T interface{ end() }] struct {
	mu      sync.Mutex
	it      T
	started bool
}

// get returns the result of start, now or earlier. A start that fails ends its test only.
func (s *shared[T]) get(start func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.it = start()
		s.started = true
		atExit(s.it.end)
	}
	return s.it
}

// FreeAddr returns an address for a server that will end, or be restarted, while tests go on. No program
// listens there, and no system gives its port to a server that asks for any port.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return loopback(port)
}

// DeadAddr returns an address on which connections are refused until the test ends: its port
// belongs to an open connection, so that no server can take it meanwhile.
func DeadAddr(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// ownFiles writes the certificate of testcert.Own into a folder.
func ownFiles(dir string) (own *testcert.Authority, f testcert.Files, err error) {
	if own, err = testcert.Own(); err == nil {
		f, err = own.Write(dir)
	}
	return own, f, err
}

// trust returns how clients reach a server that shows the authority's certificate: they show it too.
func trust(own *testcert.Authority) (*tls.Config, error) {
	cert, err := tls.X509KeyPair(own.Cert, own.Key)
	return &tls.Config{RootCAs: own.Roots(), Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}, err
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

var java = &program{name: "java", env: "DISTLOCK_TEST_JAVA", debian: "default-jre-headless"}

// Java returns the command, not started yet, of a main class in a folder below interop, which make
// servers builds. jars, if any, replace the project's own libraries.
func Java(tb testing.TB, project, class string, jars ...string) *exec.Cmd {
	tb.Helper()
	path := java.must(tb, "java")
	home, err := provided(project)
	if err != nil {
		missing(tb, "java", err)
	}
	if len(jars) == 0 {
		jars = []string{filepath.Join(home, "lib", "*")}
	}
	// It lives for seconds: a quick start counts for more than a quick end.
	return exec.Command(path, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classPath(append([]string{filepath.Join(home, "peer.jar")}, jars...)), class)
}

// TLC returns the jar of TLC, which checks the specifications in model. make servers fetches it.
func TLC(tb testing.TB) string {
	tb.Helper()
	jar, err := provided("tlc")
	if err != nil {
		missing(tb, "tlc", err)
	}
	return jar
}

// DebianCurator returns the jars of the Apache Curator that the system has: Debian's is an
// old one with which many deployments run. They name what else they need, all but what writes the log.
func DebianCurator(tb testing.TB) []string {
	tb.Helper()
	jars, err := debianJars("libcurator-recipes-java", "curator-recipes", "curator-framework", "curator-client", "slf4j-simple")
	if err != nil {
		missing(tb, "curator", err)
	}
	return jars
}

func debianJars(debian string, names ...string) (jars []string, err error) {
	for _, name := range names {
		jar := "/usr/share/java/" + name + ".jar"
		if _, err := os.Stat(jar); err != nil {
			return nil, fmt.Errorf("%w; run make servers, or install it (Debian: package %s)", err, debian)
		}
		jars = append(jars, jar)
	}
	return jars, nil
}

func classPath(jars []string) string { return strings.Join(jars, string(filepath.ListSeparator)) }
