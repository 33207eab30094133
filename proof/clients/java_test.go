//go:build linux

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

var classes struct {
	sync.Once
	dir string
	err error
}

// java returns the command of a main class, with the client, its tests and the peer compiled.
func java(tb testing.TB, args ...string) *exec.Cmd {
	tb.Helper()
	javac, jvm := testserver.Tool(tb, "javac"), testserver.Tool(tb, "java")
	classes.Do(func() {
		if classes.dir, classes.err = os.MkdirTemp("", "distlock-classes-"); classes.err != nil {
			return
		}
		const sources = "io/github/distlock/*.java"
		main, _ := filepath.Glob(filepath.Join(clients, "java/src/main/java", sources))
		tests, _ := filepath.Glob(filepath.Join(clients, "java/src/test/java", sources))
		tests = append(tests, "programs/Peer.java")
		for _, args := range [][]string{append([]string{"--release", "11"}, main...), append([]string{"-cp", classes.dir}, tests...)} {
			out, err := exec.Command(javac, append([]string{"-Xlint:all", "-Werror", "-d", classes.dir}, args...)...).CombinedOutput()
			if err != nil {
				classes.err = fmt.Errorf("javac: %w: %s", err, out)
			}
		}
	})
	if classes.err != nil {
		tb.Fatal(classes.err)
	}
	quick := []string{"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes.dir}
	return exec.Command(jvm, append(quick, args...)...)
}

// The client's tests on real servers: hosts that are off, servers that are killed and stopped, interrupts, a thousand leases, all
// options, TLS. With a JVM that has virtual threads too, if there is one.
func TestLongJavaOnServers(t *testing.T) {
	command, redis := distlockCommand(t), testserver.SharedRedis(t).URL()
	for _, tests := range []string{"ServersTest", "FeaturesTest"} {
		t.Run(tests, func(t *testing.T) {
			t.Parallel()
			runs(t, java(t, "io.github.distlock."+tests, command, redis))
		})
	}
	t.Run("virtual threads", func(t *testing.T) {
		t.Parallel()
		cmd := java(t, "io.github.distlock.ServersTest", command, redis, "manyThreads", "interrupts", "cancels", "forgottenLeases")
		if newest := newestJVM(); newest != "" {
			cmd.Path = newest
		}
		cmd.Args = append([]string{cmd.Args[0], "-Djdk.virtualThreadScheduler.parallelism=1", "-Djdk.virtualThreadScheduler.maxPoolSize=1"}, cmd.Args[1:]...)
		runs(t, cmd)
	})
}

func runs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// newestJVM returns the path of the newest java of the system, if that has virtual threads.
func newestJVM() (path string) {
	newest := 20
	releases, _ := filepath.Glob("/usr/lib/jvm/*/release")
	for _, file := range releases {
		text, _ := os.ReadFile(file)
		if m := regexp.MustCompile(`JAVA_VERSION="(\d+)`).FindSubmatch(text); m != nil {
			if version, _ := strconv.Atoi(string(m[1])); version > newest {
				newest, path = version, filepath.Join(filepath.Dir(file), "bin", "java")
			}
		}
	}
	return path
}

// The package is the same each time it is built, and a program that has only the jar takes
// a lock.
func TestLongJavaPackage(t *testing.T) {
	jvm := testserver.Tool(t, "java")
	var jars [2][]byte
	var jar string
	for i := range jars {
		dir := t.TempDir()
		runs(t, exec.Command("bash", filepath.Join(clients, "java", "package"), "v1.2.3", dir))
		for _, name := range []string{"-sources.jar", "-javadoc.jar", ".pom", ".jar"} {
			jar = filepath.Join(dir, "distlock-client-1.2.3"+name)
			jars[i] = append(jars[i], must.Get(os.ReadFile(jar))(t)...)
		}
	}
	if string(jars[0]) != string(jars[1]) {
		t.Error("two builds differ")
	}
	_, url := serverProcess(t, testserver.Redis(t).URL())
	file := filepath.Join(t.TempDir(), "Example.java")
	must.OK(t, os.WriteFile(file, []byte(exampleAt(t, "java/Example.java", url)), 0o600))
	runs(t, exec.Command(jvm, "-cp", jar, file))
}
