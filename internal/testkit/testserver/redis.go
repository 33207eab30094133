package testserver

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var redisServer = &program{name: "redis-server", env: "DISTLOCK_TEST_REDIS", dirs: []string{"/usr/sbin", "/usr/local/bin"}, debian: "redis-server"}

// RedisServer is a standalone Redis, or Valkey, that keeps its data in memory.
type RedisServer struct {
	*Process
	port, bus      int // bus: where the nodes of a cluster talk
	user, password string
	tls            *tls.Config
	public         string // the address that others are told, if not Addr
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

var sharedRedis shared[*RedisServer]

// SharedRedis is a server that all tests of the process use: they must neither stop
// it nor flush it, and choose names of their own.
func SharedRedis(tb testing.TB) *RedisServer {
	tb.Helper()
	return sharedRedis.get(func() *RedisServer { return startRedis(tb, nil) })
}

// Addr is the server's host and port.
func (s *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Public is the address that the server tells others: Addr, or that of what stands in
// front of it.
func (s *RedisServer) Public() string { return cmp.Or(s.public, s.Addr()) }

// URL is how redislock.Open reaches the server. It has no password.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() }

// Dir is the folder that the server runs in.
func (s *RedisServer) Dir() string { return s.dir }

func startRedis(tb testing.TB, args []string) *RedisServer {
	tb.Helper()
	s := newRedis(tb)
	if err := s.launch(func() ([]string, error) { return args, nil }); err != nil {
		s.fail(err)
	}
	return s
}

// newRedis is a server that is not started yet.
func newRedis(tb testing.TB) *RedisServer {
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
	s.ready = s.ping
	return s
}

// fail ends the test for a server that can't be used.
func (s *RedisServer) fail(err error) {
	s.tb.Helper()
	s.end()
	s.tb.Fatalf("testserver: %v", err)
}

// launch starts the server on a free port, with what more returns once that is known.
func (s *RedisServer) launch(more func() ([]string, error)) error {
	return launch(func(port int) error {
		s.port = port
		args, err := more()
		if err != nil {
			return err
		}
		s.args = append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--daemonize", "no",
			"--save", "", "--appendonly", "no", "--logfile", "", "--dir", s.dir,
		}, args...)
		return s.start()
	})
}

// Do sends one command on a connection of its own, logged in if the deployment has a
// user, and returns the answer: an int64, a string, nil, or a []any of these. An error
// that the server answered matches ErrReply.
func (s *RedisServer) Do(args ...string) (any, error) { return s.within(startTimeout, args) }

// poll is Do for a question that is repeated until the answer is the wanted one.
func (s *RedisServer) poll(args ...string) (any, error) { return s.within(pollTimeout, args) }

func (s *RedisServer) within(timeout time.Duration, args []string) (any, error) {
	c, err := dialResp(s.Addr(), s.tls, timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if s.password != "" {
		login := []string{"AUTH", s.user, s.password}
		if s.user == "" {
			login = []string{"AUTH", s.password}
		}
		if _, err := c.do(login...); err != nil {
			return nil, err
		}
	}
	return c.do(args...)
}

// ping succeeds if the server answers a PING, be it that one has to log in first. It
// must be this one: somebody else's may have been quicker to take the port.
func (s *RedisServer) ping() error {
	c, err := dialResp(s.Addr(), s.tls, pollTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.do("PING")
	if err != nil && (strings.Contains(err.Error(), "NOAUTH") || strings.Contains(err.Error(), "NOPERM")) {
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := c.do("CONFIG", "GET", "dir")
	if list, ok := dir.([]any); err == nil && ok && len(list) == 2 && filepath.Base(fmt.Sprint(list[1])) != filepath.Base(s.dir) {
		return fmt.Errorf("another server has the port: that of %v", list[1])
	}
	return nil
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
