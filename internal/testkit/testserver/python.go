package testserver

import (
	"os/exec"
	"testing"
)

var redisPy = &program{
	name: "python3", env: "DISTLOCK_TEST_PYTHON", dirs: []string{"/usr/bin"}, debian: "python3-redis",
	works: func(path string) bool { return exec.Command(path, "-c", "import redis").Run() == nil },
}

// RedisPy is the path of a Python 3 that has redis-py.
func RedisPy(tb testing.TB) string {
	tb.Helper()
	path, err := redisPy.find()
	if err != nil {
		missing(tb, "redis-py", err)
	}
	return path
}
