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

var redisServer = &program{name: "redis-server", env: "DISTLOCK_TEST_REDIS", debian: "redis-server"}

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

// SharedRedis returns a server that all tests of the process use: they must neither stop
// it nor flush it, and choose names of their own.
func SharedRedis(tb testing.TB) *RedisServer {
	tb.Helper()
	return sharedRedis.get(func() *RedisServer { return startRedis(tb, nil) })
}

// Addr returns the server's host and port.
func (s *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Public returns the address that the server announces: Addr, or the address of its proxy.
func (s *RedisServer) Public() string { return cmp.Or(s.public, s.Addr()) }

// URL returns how redislock.Open reaches the server. It has no password.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() }

// Dir returns the folder that the server runs in.
func (s *RedisServer) Dir() string { return s.dir }

func startRedis(tb testing.TB, args []string) *RedisServer {
	tb.Helper()
	s := newRedis(tb)
	if err := s.launch(func() ([]string, error) { return args, nil }); err != nil {
		s.fail(err)
	}
	return s
}

// newRedis returns a server that is not started yet.
func newRedis(tb testing.TB) *RedisServer {
	tb.Helper()
	path, err := redisServer.find()
	if err != nil {
		missing(tb, "redis", err)
	}
	dir, err := newDir("redis")
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
	// Password is what every server wants. With a User it is that user's and no other's
	// else may do anything; without, the default user's.
	User, Password string

	// SentinelUser and SentinelPassword are the same for the sentinels.
	SentinelUser, SentinelPassword string

	// TLS lets the servers that keep data speak nothing else. Clients use TLSConfig.
	TLS bool

	// Args are further options for each server that keeps data, as in Redis.
	Args []string

	// Front is called with the address of each server that keeps data, before it is
	// started, and returns the one that it tells others: the address of a proxy.
	// Replicas, sentinels and clients then all come that way.
	Front func(addr string) string
}

// args returns a data server's options.
func (o *RedisOptions) args() []string {
	args := append([]string{"--repl-diskless-sync-delay", "0"}, loginArgs(o.User, o.Password)...)
	if o.Password != "" {
		args = append(args, "--masterauth", o.Password)
	}
	if o.User != "" {
		args = append(args, "--masteruser", o.User)
	}
	return append(args, o.Args...)
}

// loginArgs returns the options that make a server ask for a password.
func loginArgs(user, password string) []string {
	switch {
	case user != "":
		return []string{
			"--user", "default", "off",
			"--user", user, "on", ">" + password, "~*", "&*", "+@all",
		}
	case password != "":
		return []string{"--requirepass", password}
	}
	return nil
}

// front returns the address that a server tells others.
func (o *RedisOptions) front(addr string) (host, port string, err error) {
	if o.Front != nil {
		addr = o.Front(addr)
	}
	return net.SplitHostPort(addr)
}

// start starts a server that keeps data.
func (o *RedisOptions) start(s *RedisServer, more func(s *RedisServer) ([]string, error)) error {
	s.user, s.password = o.User, o.Password
	return s.launch(func() ([]string, error) {
		args := o.args()
		if o.TLS {
			own, err := s.useTLS()
			if err != nil {
				return nil, err
			}
			args = append(args, own...)
		}
		extra, err := more(s)
		return append(args, extra...), err
	})
}

// useTLS returns the options that move the server's port to TLS.
func (s *RedisServer) useTLS() ([]string, error) {
	c := ownCertificate()
	cert, key, err := c.write(s.dir)
	if err != nil {
		return nil, err
	}
	s.tls = c.trust()
	return []string{
		"--tls-port", strconv.Itoa(s.port), "--port", "0",
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no", "--tls-replication", "yes", "--tls-cluster", "yes",
	}, nil
}

// TLSConfig returns how clients reach the server; nil if it doesn't speak TLS.
func (s *RedisServer) TLSConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Clone()
}

// view is the cluster as one of its nodes sees it.
type view []nodeLine

// nodeLine is a node, as CLUSTER NODES describes it.
type nodeLine struct {
	id    string
	flags []string
	slots [][2]int // first and last of each range
}

func (n *nodeLine) is(flag string) bool { return slices.Contains(n.flags, flag) }

func clusterView(s *RedisServer) (view, error) {
	reply, err := s.poll("CLUSTER", "NODES")
	if err != nil {
		return nil, err
	}
	var v view
	for _, line := range strings.Split(fmt.Sprint(reply), "\n") {
		if fields := strings.Fields(line); len(fields) >= 8 {
			v = append(v, nodeLine{id: fields[0], flags: strings.Split(fields[2], ","), slots: slotRanges(fields[8:])})
		}
	}
	return v, nil
}

// slotRanges reads "7", "0-5460", and leaves out what is on the move: "[7->-id]".
func slotRanges(fields []string) [][2]int {
	var ranges [][2]int
	for _, f := range fields {
		first, last, ok := strings.Cut(f, "-")
		if !ok {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err == nil && err2 == nil {
			ranges = append(ranges, [2]int{a, b})
		}
	}
	return ranges
}

func (v view) node(id string) *nodeLine {
	i := slices.IndexFunc(v, func(n nodeLine) bool { return n.id == id })
	if i < 0 {
		return nil
	}
	return &v[i]
}

func (v view) count(flag string) int {
	n := 0
	for i := range v {
		if v[i].is(flag) {
			n++
		}
	}
	return n
}

// owner returns the id of the node that a slot belongs to.
func (v view) owner(slot int) string {
	for _, n := range v {
		for _, r := range n.slots {
			if r[0] <= slot && slot <= r[1] && !n.is("fail") {
				return n.id
			}
		}
	}
	return ""
}

// takesCommands succeeds if a node finds its cluster in order.
func takesCommands(s *RedisServer) error {
	reply, err := s.poll("CLUSTER", "INFO")
	if err == nil && !strings.Contains(fmt.Sprint(reply), "cluster_state:ok") {
		err = fmt.Errorf("%s says the cluster is down: %w", s.Addr(), errNotYet)
	}
	return err
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
	case '$':
		return c.readBulk(rest)
	case '*':
		return c.readList(rest)
	}
	return nil, fmt.Errorf("not an answer of Redis: %q", line)
}

func (c *respConn) readBulk(size string) (any, error) {
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	return string(b[:n]), nil
}

func (c *respConn) readList(size string) (any, error) {
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return nil, err
	}
	list := make([]any, n)
	for i := range list {
		if list[i], err = c.read(); err != nil && !errors.Is(err, ErrReply) {
			return nil, err
		}
	}
	return list, nil
}

// OldRedis starts a Redis 6.2 of the test's own: the last before 7.0 changed scripts
// and their errors.
func OldRedis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	path, err := provided("redis-6.2")
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
