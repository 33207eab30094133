package testserver

import (
	"cmp"
	"crypto/tls"
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

// ZooKeeperServer is a ZooKeeper, alone or one of a cluster. What it has written
// survives Kill and Stop.
type ZooKeeperServer struct {
	*Process
	jars []string
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

// SharedZooKeeper returns a server that all tests of the process use: they must not stop it,
// and choose paths of their own.
func SharedZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	return sharedZooKeeper.get(func() *ZooKeeperServer { return startZooKeeper(tb, ZooKeeperOptions{}) })
}

// Addr returns the server's host and port, which speaks plain text.
func (s *ZooKeeperServer) Addr() string { return loopback(s.port) }

// URL returns how zklock.Open reaches the server, with TLS if it speaks that.
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

// asked returns the value after a name in an answer of lines such as "Mode: leader".
func (s *ZooKeeperServer) asked(word, name string) (string, error) {
	// A server that is about to start, or to lead, leaves some without an answer.
	answer, err := s.ask(word, 300*time.Millisecond)
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(answer, "\n") {
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

// newZooKeeper returns a server that is not started yet.
func newZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	jars, err := zooKeeperJars()
	if err != nil {
		missing(tb, "zookeeper", err)
	}
	path, err := java.find()
	if err != nil {
		missing(tb, "zookeeper", err)
	}
	dir, err := newDir("zookeeper")
	if err != nil {
		tb.Fatal(err)
	}
	s := &ZooKeeperServer{Process: &Process{tb: tb, path: path, dir: dir}, jars: jars}
	s.ready = s.ok
	return s
}

// ok succeeds if the server serves. It must be this one: another server may have been
// quicker to take the port.
func (s *ZooKeeperServer) ok() error {
	dir, err := s.asked("conf", "dataDir=")
	if err == nil && !strings.HasPrefix(dir, s.data()) {
		err = fmt.Errorf("another server has the port: the one in %s", dir)
	}
	return errors.Join(err, s.tls.speaks())
}

func (s *ZooKeeperServer) data() string { return filepath.Join(s.dir, "data") }

// zooKeeperJars returns Java libraries that name what else they need themselves, all but what writes
// the log, and half of what speaks TLS.
func zooKeeperJars() ([]string, error) {
	if path := os.Getenv("DISTLOCK_TEST_ZOOKEEPER"); path != "" {
		return filepath.SplitList(path), nil
	}
	return debianJars("zookeeper", "zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
}

// ZooKeeperOptions say how servers are set up. The zero value is servers that any client
// may use, with sessions from 0.4 seconds to 10 minutes.
type ZooKeeperOptions struct {
	// Tick is the server's unit of time: sessions end between their timeout and one
	// tick later. Default: 200 ms.
	Tick time.Duration

	// MinSession and MaxSession are the bounds that the server puts on a session's
	// timeout. Default: two ticks, and 10 minutes.
	MinSession, MaxSession time.Duration

	// ContainerCheck is how often empty containers are looked for, to be removed.
	// Default: one minute.
	ContainerCheck time.Duration

	// TLS gives the server, one that is alone, a second port for clients, which speaks
	// nothing else.
	TLS bool

	// Config are further lines of the configuration: "jute.maxbuffer=1000".
	Config []string

	// Args are further options of Java: "-Dzookeeper.readonly.enabled=true".
	Args []string
}

// write makes the server's folder and command line.
func (o ZooKeeperOptions) write(s *ZooKeeperServer) error {
	o.Tick = cmp.Or(o.Tick, 200*time.Millisecond)
	o.MinSession = cmp.Or(o.MinSession, 2*o.Tick)
	o.MaxSession = cmp.Or(o.MaxSession, 10*time.Minute)
	o.ContainerCheck = cmp.Or(o.ContainerCheck, time.Minute)
	if err := os.MkdirAll(s.data(), 0o700); err != nil {
		return err
	}
	if o.TLS {
		more, err := s.useTLS()
		if err != nil {
			return err
		}
		o.Config = append(more, o.Config...)
	}
	file := filepath.Join(s.dir, "zoo.cfg")
	s.args = o.args(s, file)
	return os.WriteFile(file, []byte(strings.Join(o.lines(s), "\n")), 0o600)
}

func (o ZooKeeperOptions) lines(s *ZooKeeperServer) []string {
	return append([]string{
		"dataDir=" + s.data(),
		fmt.Sprint("clientPort=", s.port),
		"clientPortAddress=127.0.0.1",
		fmt.Sprint("tickTime=", o.Tick.Milliseconds()),
		fmt.Sprint("minSessionTimeout=", o.MinSession.Milliseconds()),
		fmt.Sprint("maxSessionTimeout=", o.MaxSession.Milliseconds()),
		"maxClientCnxns=0",
		"4lw.commands.whitelist=*",
		"admin.enableServer=false",
	}, o.Config...)
}

// args let the server start quickly and write without waiting for the disk.
func (o ZooKeeperOptions) args(s *ZooKeeperServer, file string) []string {
	args := append([]string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64",
		fmt.Sprint("-Dznode.container.checkIntervalMs=", o.ContainerCheck.Milliseconds()),
	}, o.Args...)
	return append(args, "-cp", classPath(s.jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
}

// zooKeeperTLS is how a server speaks TLS.
type zooKeeperTLS struct {
	port   int
	cert   string // file
	config *tls.Config
}

// SecureAddr returns the host and port that speaks TLS.
func (s *ZooKeeperServer) SecureAddr() string { return loopback(s.tls.port) }

// TLSConfig returns how clients reach SecureAddr.
func (s *ZooKeeperServer) TLSConfig() *tls.Config { return s.tls.config.Clone() }

// speaks succeeds if the second port is open, which the server sees to last.
func (t *zooKeeperTLS) speaks() error {
	if t == nil {
		return nil
	}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: pollTimeout}, "tcp", loopback(t.port), t.config)
	if err != nil {
		return err
	}
	return c.Close()
}

// useTLS returns the lines of the configuration that give the server a port with TLS.
func (s *ZooKeeperServer) useTLS() ([]string, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	own := ownCertificate()
	cert, _, err := own.write(s.dir)
	if err != nil {
		return nil, err
	}
	store := filepath.Join(s.dir, "store.pem")
	if err := os.WriteFile(store, append(own.key, own.cert...), 0o600); err != nil {
		return nil, err
	}
	s.tls = &zooKeeperTLS{port: port, cert: cert, config: own.trust()}
	return []string{
		fmt.Sprint("secureClientPort=", port),
		"secureClientPortAddress=127.0.0.1",
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + store,
		"ssl.trustStore.location=" + cert,
		"ssl.clientAuth=none",
	}, nil
}
