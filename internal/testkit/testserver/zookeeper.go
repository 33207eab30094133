package testserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var java = &program{name: "java", env: "DISTLOCK_TEST_JAVA", debian: "default-jre-headless"}

// ZooKeeperServer is a ZooKeeper, alone or one of a cluster. What it has written
// survives Kill and Stop.
type ZooKeeperServer struct {
	*Process
	port int
	tls  *zooKeeperTLS // nil: the server doesn't speak it
}

// ZooKeeper starts a server of the test's own.
func ZooKeeper(tb testing.TB, o ZooKeeperOptions) *ZooKeeperServer {
	tb.Helper()
	s := startZooKeeper(tb, o)
	tb.Cleanup(s.end)
	return s
}

var sharedZooKeeper shared[*ZooKeeperServer]

// SharedZooKeeper is a server that all tests of the process use: they must not stop it,
// and choose paths of their own.
func SharedZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	return sharedZooKeeper.get(func() *ZooKeeperServer { return startZooKeeper(tb, ZooKeeperOptions{}) })
}

// Addr is the server's host and port, which speaks plain text.
func (s *ZooKeeperServer) Addr() string { return loopback(s.port) }

// URL is how zklock.Open reaches the server, with TLS if it speaks that.
func (s *ZooKeeperServer) URL() string {
	if s.tls != nil {
		return "zks://" + loopback(s.tls.port) + "?ca=" + url.QueryEscape(s.tls.cert)
	}
	return "zk://" + s.Addr()
}

// Ask sends one of the words of four letters that an operator asks with: "srvr",
// "cons", "wchp"; and returns the answer.
func (s *ZooKeeperServer) Ask(word string) (string, error) {
	return s.ask(word, startTimeout)
}

func (s *ZooKeeperServer) ask(word string, patience time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr(), patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// asked is the value after a name in an answer of lines such as "Mode: leader".
func (s *ZooKeeperServer) asked(word, name string) (string, error) {
	// A server that is about to start, or to lead, leaves some without an answer.
	answer, err := s.ask(word, 300*time.Millisecond)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%s says nothing of %s: %q: %w", s.Addr(), name, answer, errNotYet)
}

func startZooKeeper(tb testing.TB, o ZooKeeperOptions) *ZooKeeperServer {
	tb.Helper()
	s := newZooKeeper(tb)
	err := launch(func(port int) error {
		s.port = port
		if err := o.write(s); err != nil {
			return err
		}
		return s.start()
	})
	if err != nil {
		s.end()
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// newZooKeeper is a server that is not started yet.
func newZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	if err := zooKeeperJars.find(); err != nil {
		missing(tb, "zookeeper", err)
	}
	path, err := java.find()
	if err != nil {
		missing(tb, "zookeeper", err)
	}
	dir, err := os.MkdirTemp("", "distlock-zookeeper-")
	if err != nil {
		tb.Fatal(err)
	}
	s := &ZooKeeperServer{Process: &Process{tb: tb, path: path, dir: dir}}
	s.ready = s.ok
	return s
}

// ok succeeds if the server serves. It must be this one: somebody else's may have been
// quicker to take the port.
func (s *ZooKeeperServer) ok() error {
	dir, err := s.asked("conf", "dataDir=")
	if err == nil && !strings.HasPrefix(dir, s.data()) {
		err = fmt.Errorf("another server has the port: that of %s", dir)
	}
	return errors.Join(err, s.tls.speaks())
}

func (s *ZooKeeperServer) data() string { return filepath.Join(s.dir, "data") }

// jars are Java libraries that a coordinator needs.
type jars struct {
	env    string // environment variable that overrides files
	files  []string
	debian string
}

// zooKeeperJars name what else they need themselves, all but what writes the log, and
// half of what speaks TLS.
var zooKeeperJars = &jars{
	env: "DISTLOCK_TEST_ZOOKEEPER",
	files: []string{
		"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar",
		"/usr/share/java/netty-codec.jar", "/usr/share/java/netty-resolver.jar",
	},
	debian: "zookeeper",
}

// find fails if the libraries are not there.
func (j *jars) find() error {
	if os.Getenv(j.env) != "" {
		return nil
	}
	if _, err := os.Stat(j.files[0]); err != nil {
		return fmt.Errorf("%w, and %s names no other; run make servers, or install it (Debian: package %s)", err, j.env, j.debian)
	}
	return nil
}

// classPath is Java's -cp.
func (j *jars) classPath() string {
	if path := os.Getenv(j.env); path != "" {
		return path
	}
	return strings.Join(j.files, string(filepath.ListSeparator))
}
