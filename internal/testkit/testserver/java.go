package testserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	jdk   = &program{name: "javac", env: "DISTLOCK_TEST_JAVAC", debian: "openjdk-17-jdk-headless"}
	maven = &program{name: "mvn", env: "DISTLOCK_TEST_MAVEN", debian: "maven"}
)

// mavenTimeout is how long Maven may take, which may have all to download.
const mavenTimeout = 10 * time.Minute

// JavaProject is a Maven project that tests run. It must put peer.jar and lib/ into its
// target.
type JavaProject struct {
	Dir     string   // where pom.xml and src are
	Sources []string // further folders with a src of Java, compiled with it
	Jars    []string // what it runs with in place of lib/, if any
}

// Java is the command, not started yet, of a main class in a Maven project.
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

// Spawn starts a child process that ends with the test process, however that dies,
// where the system can do this.
func Spawn(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	return spawn(cmd)
}

// built returns the folder with what the project was built to.
func (p JavaProject) built() (target string, err error) {
	name, err := p.fingerprint()
	if err != nil {
		return "", err
	}
	return cached(filepath.Join(userCache(name), "target"))
}

// provide builds the project.
func (p JavaProject) provide() (string, error) {
	if target, err := p.built(); err == nil {
		return target, nil
	}
	name, err := p.fingerprint()
	if err != nil {
		return "", err
	}
	return userCache(name), p.build(userCache(name))
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

// eachSource reads what Maven needs of a project: not what an IDE or somebody's own
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

// build builds a copy of the project, and puts it in place when it is complete:
// several processes may be doing this.
func (p JavaProject) build(built string) error {
	mvn, err := maven.find()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(built), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(built), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := p.copySources(dir); err != nil {
		return err
	}
	if runMaven(mvn, dir, "-o") != nil { // nothing to download: nobody has to be asked
		if err := runMaven(mvn, dir); err != nil {
			return err
		}
	}
	if err := os.Rename(dir, built); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

func (p JavaProject) copySources(dir string) error {
	return p.eachSource(func(path string, content []byte) error {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, content, 0o644)
	})
}

func runMaven(mvn, dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), mavenTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, mvn, append([]string{"-q", "-B", "package"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s package: %w: %s", mvn, err, tail(string(out), 1000))
	}
	return nil
}
