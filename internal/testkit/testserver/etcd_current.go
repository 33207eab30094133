package testserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// buildTimeout is how long Go may take to build a program, and to download what it is
// made of.
const buildTimeout = 10 * time.Minute

// etcdModule is the package of a program of etcd's current release, and of its module,
// by the name that it has as a program.
var etcdModule = map[string]string{"etcd": "go.etcd.io/etcd/server/v3", "etcdctl": "go.etcd.io/etcd/etcdctl/v3"}

var etcdctl = &program{name: "etcdctl", env: "DISTLOCK_TEST_ETCDCTL", dirs: []string{"/usr/bin", "/usr/local/bin"}, debian: "etcd-client"}

var sharedCurrentEtcd shared[*EtcdServer]

// SharedCurrentEtcd is SharedEtcd of the current release; see EtcdOptions.Current.
func SharedCurrentEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	return sharedCurrentEtcd.get(func() *EtcdServer { return startEtcd(tb, EtcdOptions{Current: true}) })
}

// Etcdctl is the path of etcd's command: the installed one, or that of the current
// release.
func Etcdctl(tb testing.TB, current bool) string {
	tb.Helper()
	find := etcdctl.find
	if current {
		find = func() (string, error) { return currentEtcd("etcdctl") }
	}
	path, err := find()
	if err != nil {
		missing(tb, "etcd", err)
	}
	return path
}

// program is the path of the server that is wanted.
func (o EtcdOptions) program() (string, error) {
	if o.Current {
		return currentEtcd("etcd")
	}
	return etcdServer.find()
}

// currentEtcd returns the path of a program of the release that interop/etcd requires, which
// make servers builds into the user's cache.
func currentEtcd(name string) (string, error) {
	if path := os.Getenv("DISTLOCK_TEST_CURRENT_" + strings.ToUpper(name)); path != "" {
		return path, nil
	}
	path, err := currentEtcdPath(name)
	if err != nil {
		return "", err
	}
	return cached(path)
}

func currentEtcdPath(name string) (string, error) {
	version, err := inEtcdModule("list", "-m", "-f", "{{.Version}}", etcdModule[name])
	return userCache(name + "-" + strings.TrimSpace(version)), err
}

// provideCurrentEtcd builds a program.
func provideCurrentEtcd(name string) (string, error) {
	if path, err := currentEtcd(name); err == nil {
		return path, nil
	}
	path, err := currentEtcdPath(name)
	if err != nil {
		return "", err
	}
	return path, buildEtcd(name, path)
}

// buildEtcd puts a program in place when it is complete: several processes may be doing
// this.
func buildEtcd(name, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, name)
	if _, err := inEtcdModule("build", "-o", built, etcdModule[name]); err != nil {
		return err
	}
	return os.Rename(built, path)
}

// inEtcdModule runs go in the module that says what the current release is.
func inEtcdModule(args ...string) (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return "", fmt.Errorf("the folder of this source is not known: is it built with -trimpath?")
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(filepath.Dir(here), "..", "..", "..", "interop", "etcd")
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("go %s in %s: %w: %s", strings.Join(args, " "), cmd.Dir, err, tail(failed.String(), 500))
	}
	return string(out), err
}
