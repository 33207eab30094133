package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var redisServer = &program{name: "redis-server", env: "DISTLOCK_TEST_REDIS", dirs: []string{"/usr/sbin", "/usr/local/bin"}, debian: "redis-server"}

// RedisServer is a standalone Redis, or Valkey, that keeps its data in memory.
type RedisServer struct {
	*Process
	port int
}

// Redis starts a server of the test's own. args are further options as on
// redis-server's command line: "--requirepass", "secret". Relative paths in them are
// relative to the server's folder, see Dir.
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	s := startRedis(tb, args)
	tb.Cleanup(s.end)
	return s
}

var sharedRedis struct {
	sync.Mutex
	*RedisServer
}

// SharedRedis is a server that all tests of the process use: they must neither stop
// it nor flush it, and choose names of their own.
func SharedRedis(tb testing.TB) *RedisServer {
	tb.Helper()
	sharedRedis.Lock()
	defer sharedRedis.Unlock()
	if sharedRedis.RedisServer == nil {
		sharedRedis.RedisServer = startRedis(tb, nil)
		atExit(sharedRedis.end)
	}
	return sharedRedis.RedisServer
}

// Addr is the server's host and port.
func (s *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is how redislock.Open reaches the server. It has no password.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() }

// Dir is the folder that the server runs in.
func (s *RedisServer) Dir() string { return s.dir }

func startRedis(tb testing.TB, args []string) *RedisServer {
	tb.Helper()
	path, err := redisServer.find()
	if err != nil {
		missing(tb, "redis", err)
	}
	dir, err := os.MkdirTemp("", "distlock-redis-")
	if err != nil {
		tb.Fatal(err)
	}
	s := &RedisServer{Process: &Process{tb: tb, path: path, dir: dir}}
	s.ready = func() error { return pingRedis(s.Addr()) }
	err = launch(func(port int) error {
		s.port = port
		s.args = append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--daemonize", "no",
			"--save", "", "--appendonly", "no", "--logfile", "", "--dir", dir,
		}, args...)
		return s.start()
	})
	if err != nil {
		os.RemoveAll(dir)
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// pingRedis succeeds if the server answers a PING, be it that one has to log in first.
func pingRedis(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprint(c, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") || strings.HasPrefix(line, "-NOPERM") {
		return nil
	}
	return errors.New(strings.TrimSpace(line))
}

// File writes a file into a folder of the test and returns its path; an ACL file, say.
// It is for options that need the file before the server starts:
//
//	testserver.Redis(t, "--aclfile", testserver.File(t, "users.acl", "user default off\n"))
func File(tb testing.TB, name, content string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
