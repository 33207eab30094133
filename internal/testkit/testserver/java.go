package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var java = &program{name: "java", env: "DISTLOCK_TEST_JAVA", debian: "default-jre-headless"}

// Java returns the command, not started yet, of a main class in a folder below interop, which make
// servers builds. jars are what it runs with in place of the project's own libraries, if any.
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
