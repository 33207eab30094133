package testserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var (
	jdk   = &program{name: "javac", env: "DISTLOCK_TEST_JAVAC", debian: "openjdk-17-jdk-headless"}
	maven = &program{name: "mvn", env: "DISTLOCK_TEST_MAVEN", debian: "maven"}
)

// mavenTimeout is how long Maven may take, which may have all to download.
const mavenTimeout = 10 * time.Minute

var building sync.Mutex

// Java is the command, not started yet, of a main class in the Maven project that lies
// in a folder. The project must put peer.jar and lib/ into its target.
//
// It is built outside its folder, once for each content of pom.xml and src, and kept in
// the user's cache. Without Java 17, Maven or what Maven has to download the test ends
// as it does without a server.
func Java(tb testing.TB, project, class string) *exec.Cmd {
	tb.Helper()
	javac, err := jdk.find()
	if err != nil {
		missing(tb, "java", err)
	}
	target, err := mavenTarget(project)
	if err != nil {
		missing(tb, "java", err)
	}
	classes := filepath.Join(target, "peer.jar") + string(filepath.ListSeparator) + filepath.Join(target, "lib", "*")
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

// mavenTarget is the folder with what the project was built to.
func mavenTarget(project string) (string, error) {
	building.Lock()
	defer building.Unlock()
	project, err := filepath.Abs(project)
	if err != nil {
		return "", err
	}
	name, err := fingerprint(project)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	built := filepath.Join(cache, "distlock-test", name)
	target := filepath.Join(built, "target")
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	return target, buildMaven(project, built)
}

// fingerprint names the content of a project.
func fingerprint(project string) (string, error) {
	sum := sha256.New()
	err := eachSource(project, func(path string, content []byte) error {
		fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
		return nil
	})
	return fmt.Sprintf("%s-%.8x", filepath.Base(project), sum.Sum(nil)), err
}

// eachSource reads what Maven needs of a project: not what an IDE or somebody's own
// build has left there.
func eachSource(project string, f func(path string, content []byte) error) error {
	return fs.WalkDir(os.DirFS(project), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == "target":
			return fs.SkipDir
		case d.IsDir() || path != "pom.xml" && filepath.Ext(path) != ".java":
			return nil
		}
		content, err := os.ReadFile(filepath.Join(project, path))
		if err != nil {
			return err
		}
		return f(path, content)
	})
}

// buildMaven builds a copy of the project, and puts it in place when it is complete:
// several processes may be doing this.
func buildMaven(project, built string) error {
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
	if err := copySources(project, dir); err != nil {
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

func copySources(project, dir string) error {
	return eachSource(project, func(path string, content []byte) error {
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
