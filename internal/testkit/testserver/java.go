package testserver

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	jdk   = &program{name: "javac", env: "DISTLOCK_TEST_JAVAC", debian: "openjdk-17-jdk-headless"}
	maven = &program{name: "mvn", env: "DISTLOCK_TEST_MAVEN", debian: "maven"}
)

// JavaProject is a Maven project that tests run. It must put peer.jar and lib/ into its
// target.
type JavaProject struct {
	Dir     string   // where pom.xml and src are
	Sources []string // further folders with a src of Java, compiled with it
	Jars    []string // what it runs with in place of lib/, if any
}

// Java returns the command, not started yet, of a main class in a Maven project.
//
// make servers builds it, into the user's cache, once for each content of pom.xml and src.
// If it is not there the test ends as it does without a server.
func Java(tb testing.TB, p JavaProject, class string) *exec.Cmd {
	tb.Helper()
	javac, err := jdk.find()
	if err != nil {
		missing(tb, "java", err)
	}
	target, err := p.built()
	if err != nil {
		missing(tb, "java", err)
	}
	jars := p.Jars
	if jars == nil {
		jars = []string{filepath.Join(target, "lib", "*")}
	}
	classes := strings.Join(append([]string{filepath.Join(target, "peer.jar")}, jars...), string(filepath.ListSeparator))
	// It lives for seconds: a quick start counts for more than a quick end.
	return exec.Command(filepath.Join(filepath.Dir(javac), "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes, class)
}

// built returns the folder with what the project was built to.
func (p JavaProject) built() (target string, err error) {
	name, err := p.fingerprint()
	if err != nil {
		return "", err
	}
	return cached(filepath.Join(userCache(name), "target"))
}

// fingerprint names the content of a project.
func (p JavaProject) fingerprint() (string, error) {
	sum := sha256.New()
	err := p.eachSource(func(path string, content []byte) error {
		fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
		return nil
	})
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(p.Dir)
	return fmt.Sprintf("%s-%.8x", filepath.Base(dir), sum.Sum(nil)), err
}

// eachSource reads what Maven needs of a project: not the output of an IDE or another
// build has left there.
func (p JavaProject) eachSource(f func(path string, content []byte) error) error {
	for _, dir := range append([]string{p.Dir}, p.Sources...) {
		err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path == "target":
				return fs.SkipDir
			case d.IsDir() || path != "pom.xml" && filepath.Ext(path) != ".java":
				return nil
			}
			content, err := os.ReadFile(filepath.Join(dir, path))
			if err != nil {
				return err
			}
			return f(path, content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var redisPy = &program{
	name: "python3", env: "DISTLOCK_TEST_PYTHON", dirs: []string{"/usr/bin"}, debian: "python3-redis",
	works: func(path string) bool { return exec.Command(path, "-c", "import redis").Run() == nil },
}

// RedisPy returns the path of a Python 3 that has redis-py.
func RedisPy(tb testing.TB) string {
	tb.Helper()
	path, err := redisPy.find()
	if err != nil {
		missing(tb, "redis-py", err)
	}
	return path
}

// debianCurator name what else they need themselves, all but what writes the log.
var debianCurator = &jars{
	env: "DISTLOCK_TEST_CURATOR",
	files: []string{
		"/usr/share/java/curator-recipes.jar", "/usr/share/java/curator-framework.jar", "/usr/share/java/curator-client.jar",
		"/usr/share/java/slf4j-simple.jar",
	},
	debian: "libcurator-recipes-java",
}

// DebianCurator returns the jars of the Apache Curator that the system has: Debian's is an
// old one with which many deployments run.
func DebianCurator(tb testing.TB) []string {
	tb.Helper()
	if err := debianCurator.find(); err != nil {
		missing(tb, "curator", err)
	}
	return filepath.SplitList(debianCurator.classPath())
}
