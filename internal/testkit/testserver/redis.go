package testserver

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	redisServer = &program{name: "redis-server", env: "DISTLOCK_TEST_REDIS", debian: "redis-server"}
	oldRedis    = &program{cached: "redis-6.2"}
	valkey      = &program{cached: "valkey-9"}
)

// RedisServer is a standalone Redis, or Valkey, that keeps its data in memory.
type RedisServer struct {
	*Process
	user, password string
	tls            *tls.Config
	public         string // the address that the server announces, if not Addr
}

// Redis starts a server of the test's own. args are further options as on
// redis-server's command line: "--requirepass", "secret". Relative paths in them are
// relative to the server's folder, see Dir.
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	s := startRedis(tb, "redis", redisServer, args)
	tb.Cleanup(s.end)
	return s
}

// OldRedis starts a Redis 6.2 of the test's own: the last before 7.0 changed scripts
// and their errors.
func OldRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	s := startRedis(tb, "old-redis", oldRedis, args)
	tb.Cleanup(s.end)
	return s
}

// Valkey starts a Valkey 9 of the test's own, which has commands that Redis 7 has not.
func Valkey(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	s := startRedis(tb, "valkey", valkey, args)
	tb.Cleanup(s.end)
	return s
}

var sharedRedis shared[*RedisServer]

// SharedRedis returns a server that all tests of the process use: they must neither stop
// it nor flush it, and choose names of their own.
func SharedRedis(tb testing.TB) *RedisServer {
	tb.Helper()
	return sharedRedis.get(func() *RedisServer { return startRedis(tb, "redis", redisServer, nil) })
}

// Public returns the address that the server announces: Addr, or the address of its proxy.
func (s *RedisServer) Public() string { return cmp.Or(s.public, s.Addr()) }

// URL returns how redislock.Open reaches the server. It has no password.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() }

func startRedis(tb testing.TB, coordinator string, p *program, args []string) *RedisServer {
	tb.Helper()
	s := newRedis(tb, coordinator, p)
	s.usable(s.launch(func() error {
		s.args = s.arguments(args)
		return nil
	}))
	return s
}

// newRedis returns a server that is not started yet.
func newRedis(tb testing.TB, coordinator string, p *program) *RedisServer {
	tb.Helper()
	s := &RedisServer{Process: newProcess(tb, coordinator, p)}
	s.ready = s.ping
	return s
}

func (s *RedisServer) arguments(more []string) []string {
	return append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--daemonize", "no",
		"--save", "", "--appendonly", "no", "--logfile", "", "--dir", s.dir,
	}, more...)
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
// must be this one: another server may have been quicker to take the port.
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
		return fmt.Errorf("another server has the port: %v", list[1])
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

// RedisOptions say how the servers of a deployment are set up. The zero value is
// servers that any client may use.
type RedisOptions struct {
	// Password is required by every server. With a User it is that user's, and no other
	// user may do anything; without, the default user's.
	User, Password string

	// SentinelPassword is required by the sentinels.
	SentinelPassword string

	// TLS lets all servers speak nothing else. Clients use TLSConfig.
	TLS bool

	// Args are further options for each server that keeps data, as in Redis.
	Args []string

	// Front is called with the address of each server that keeps data, before it is started, and
	// returns the address that it announces, which is a proxy's. Replicas, sentinels and clients
	// then all connect through the proxy.
	Front func(addr string) string
}

// launch starts a server that keeps data. more returns its further options.
func (o *RedisOptions) launch(s *RedisServer, more func(host, port string) ([]string, error)) error {
	s.user, s.password = o.User, o.Password
	return s.launch(func() error {
		s.public = s.Addr()
		if o.Front != nil {
			s.public = o.Front(s.public)
		}
		host, port, err := net.SplitHostPort(s.public)
		if err != nil {
			return err
		}
		extra, err := more(host, port)
		if err != nil {
			return err
		}
		secure, err := o.useTLS(s)
		s.args = s.arguments(slices.Concat(o.logins(), o.Args, secure, extra))
		return err
	})
}

// logins returns the options of a server that requires a password, and logs in to its master.
func (o *RedisOptions) logins() []string {
	args := []string{"--repl-diskless-sync-delay", "0"}
	switch {
	case o.User != "":
		args = append(args, "--user", "default", "off", "--user", o.User, "on", ">"+o.Password, "~*", "&*", "+@all", "--masteruser", o.User)
	case o.Password != "":
		args = append(args, "--requirepass", o.Password)
	}
	if o.Password != "" {
		args = append(args, "--masterauth", o.Password)
	}
	return args
}

// useTLS returns the options that move the server's port to TLS, if it is wanted.
func (o *RedisOptions) useTLS(s *RedisServer) ([]string, error) {
	if !o.TLS {
		return nil, nil
	}
	own, f, err := ownFiles(s.dir)
	if err != nil {
		return nil, err
	}
	if s.tls, err = trust(own); err != nil {
		return nil, err
	}
	return []string{
		"--tls-port", strconv.Itoa(s.port), "--port", "0",
		"--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-ca-cert-file", f.Cert,
		"--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes",
	}, nil
}

// ErrReply is matched by the errors that a Redis server answered.
var ErrReply = errors.New("redis")

// respConn is a connection to a Redis server, for the few commands that it takes to
// set up a deployment.
type respConn struct {
	net.Conn
	r       *bufio.Reader
	timeout time.Duration // of a command
}

// dialResp connects. The timeout applies to connecting and to each command.
func dialResp(addr string, t *tls.Config, timeout time.Duration) (*respConn, error) {
	d := &net.Dialer{Timeout: timeout}
	var c net.Conn
	var err error
	if t != nil {
		c, err = tls.DialWithDialer(d, "tcp", addr, t)
	} else {
		c, err = d.Dial("tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	return &respConn{Conn: c, r: bufio.NewReader(c), timeout: timeout}, nil
}

// do sends a command and returns its answer: an int64, a string, nil, or a []any of
// these.
func (c *respConn) do(args ...string) (any, error) {
	c.SetDeadline(time.Now().Add(c.timeout))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return c.read()
}

func (c *respConn) read() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("not an answer of Redis")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '+':
		return rest, nil
	case '-':
		return nil, fmt.Errorf("%w: %s", ErrReply, rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$', '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return nil, err
		}
		if kind == '*' {
			return c.readList(n)
		}
		b := make([]byte, n+2)
		_, err = io.ReadFull(c.r, b)
		return string(b[:n]), err
	}
	return nil, fmt.Errorf("not an answer of Redis: %q", line)
}

func (c *respConn) readList(n int) (_ any, err error) {
	list := make([]any, n)
	for i := range list {
		if list[i], err = c.read(); err != nil && !errors.Is(err, ErrReply) {
			return nil, err
		}
	}
	return list, nil
}
