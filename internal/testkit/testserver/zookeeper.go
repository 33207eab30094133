package testserver

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// ZooKeeperServer is a ZooKeeper, alone or one of a cluster. Its data survives Kill and Stop.
type ZooKeeperServer struct {
	*Process
	jars   []string
	secure int         // port that speaks TLS; 0: none does
	tls    *tls.Config // for clients of that port
	cert   string      // file
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

// LoseData kills the server, deletes its data and starts it again.
func (s *ZooKeeperServer) LoseData() {
	s.tb.Helper()
	s.Kill()
	s.usable(cmp.Or(os.RemoveAll(s.data()), os.MkdirAll(s.data(), 0o700)))
	s.Start()
}

// URL returns how zklock.Open reaches the server, with TLS if it speaks that.
func (s *ZooKeeperServer) URL() string {
	if s.tls != nil {
		return "zks://" + s.SecureAddr() + "?ca=" + url.QueryEscape(s.cert)
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
	s.usable(s.launch(func() error { return o.write(s) }))
	return s
}

// newZooKeeper returns a server that is not started yet.
func newZooKeeper(tb testing.TB) *ZooKeeperServer {
	tb.Helper()
	jars, err := zooKeeperJars()
	if err != nil {
		missing(tb, "zookeeper", err)
	}
	s := &ZooKeeperServer{Process: newProcess(tb, "zookeeper", java), jars: jars}
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
	if err != nil || s.tls == nil {
		return err
	}
	// The server opens this port last.
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: pollTimeout}, "tcp", s.SecureAddr(), s.tls)
	if err != nil {
		return err
	}
	return c.Close()
}

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
	// MinSession and MaxSession are the bounds that the server puts on a session's
	// timeout. Default: two ticks, and 10 minutes.
	MinSession, MaxSession time.Duration

	// TLS gives the server, one that is alone, a second port for clients, which speaks
	// nothing else.
	TLS bool

	// ClientCert lets the server want certificates of the clients of that port, which testcert.Own has signed.
	ClientCert bool

	// Containers is how often the server looks for empty containers and deletes them. Default: a minute.
	Containers time.Duration

	config, java []string // further lines of the configuration, and options of Java
}

// tick is the server's unit of time: sessions end between their timeout and one tick later.
const tick = 200 * time.Millisecond

// write makes the server's folder and command line, with which it starts quickly and does not wait for
// the disk.
func (o ZooKeeperOptions) write(s *ZooKeeperServer) error {
	if err := os.MkdirAll(s.data(), 0o700); err != nil {
		return err
	}
	if o.TLS {
		secure, err := o.useTLS(s)
		if err != nil {
			return err
		}
		o.config = append(secure, o.config...)
	}
	lines := append([]string{
		"dataDir=" + s.data(),
		fmt.Sprint("clientPort=", s.port),
		"clientPortAddress=127.0.0.1",
		fmt.Sprint("tickTime=", tick.Milliseconds()),
		fmt.Sprint("minSessionTimeout=", cmp.Or(o.MinSession, 2*tick).Milliseconds()),
		fmt.Sprint("maxSessionTimeout=", cmp.Or(o.MaxSession, 10*time.Minute).Milliseconds()),
		"maxClientCnxns=0",
		"4lw.commands.whitelist=*",
		"admin.enableServer=false",
	}, o.config...)
	if o.Containers > 0 {
		o.java = append(o.java, fmt.Sprint("-Dznode.container.checkIntervalMs=", o.Containers.Milliseconds()))
	}
	file := filepath.Join(s.dir, "zoo.cfg")
	s.args = slices.Concat([]string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64",
	}, o.java, []string{"-cp", classPath(s.jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", file})
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600)
}

// SecureAddr returns the host and port that speaks TLS.
func (s *ZooKeeperServer) SecureAddr() string { return loopback(s.secure) }

// TLSConfig returns how clients reach SecureAddr.
func (s *ZooKeeperServer) TLSConfig() *tls.Config { return s.tls.Clone() }

// useTLS returns the lines of the configuration that give the server a port with TLS.
func (o ZooKeeperOptions) useTLS(s *ZooKeeperServer) (_ []string, err error) {
	if s.secure, err = freePort(); err != nil {
		return nil, err
	}
	own, f, err := ownFiles(s.dir)
	if err != nil {
		return nil, err
	}
	if s.tls, err = trust(own); err != nil {
		return nil, err
	}
	s.cert = f.Cert
	auth := "none"
	if o.ClientCert {
		auth = "need"
	}
	store := filepath.Join(s.dir, "store.pem")
	return []string{
		fmt.Sprint("secureClientPort=", s.secure),
		"secureClientPortAddress=127.0.0.1",
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + store,
		"ssl.trustStore.location=" + s.cert,
		"ssl.clientAuth=" + auth,
	}, os.WriteFile(store, slices.Concat(own.Key, own.Cert), 0o600)
}

// ZooKeeperGroup is an ensemble of three servers. A leader that dies is replaced in
// about a second, one that is silent in about three.
type ZooKeeperGroup struct {
	group[*ZooKeeperServer]
	links []*faultproxy.Proxy         // by which each member reaches the others
	owner map[string]*ZooKeeperServer // of an address
}

// ZooKeeperCluster starts an ensemble of the test's own, and returns when all its
// servers serve. It takes about three seconds.
func ZooKeeperCluster(tb testing.TB, o ZooKeeperOptions) *ZooKeeperGroup {
	tb.Helper()
	g := startZooKeeperCluster(tb, o, faultproxy.NewSOCKS)
	tb.Cleanup(g.end)
	return g
}

var sharedZooKeeperCluster shared[*ZooKeeperGroup]

// SharedZooKeeperCluster returns an ensemble that all tests of the process use: none may stop
// any of it, or cut it in parts.
func SharedZooKeeperCluster(tb testing.TB) *ZooKeeperGroup {
	tb.Helper()
	g := *sharedZooKeeperCluster.get(func() *ZooKeeperGroup { return startZooKeeperCluster(tb, ZooKeeperOptions{}, nil) })
	g.tb = tb
	return &g
}

// URL returns how zklock.Open reaches the ensemble.
func (g *ZooKeeperGroup) URL() string { return "zk://" + strings.Join(g.Addrs(), ",") }

// AwaitReady returns when all members serve: after a Start, say.
func (g *ZooKeeperGroup) AwaitReady() {
	g.tb.Helper()
	g.await("the ensemble is not whole", g.whole, g.processes()...)
}

func (g *ZooKeeperGroup) whole() error {
	for _, s := range g.members {
		if err := s.ok(); err != nil {
			return err
		}
	}
	return nil
}

// vote returns the leader that another member follows; old has no say in it, and is not the leader.
func (g *ZooKeeperGroup) vote(old *ZooKeeperServer) (leader *ZooKeeperServer, err error) {
	modes := map[string]int{}
	for _, s := range g.without(old) {
		mode, err := s.asked("srvr", "Mode:")
		if err != nil {
			continue
		}
		modes[mode]++
		if mode == "leader" {
			leader = s
		}
	}
	if leader == nil || modes["follower"] == 0 {
		return nil, fmt.Errorf("the members are %v: %w", modes, errNotYet)
	}
	return leader, nil
}

// Isolate cuts a member off from the others; clients reach it as before. Heal ends it.
// A member that is cut off serves for up to two seconds more.
func (g *ZooKeeperGroup) Isolate(s *ZooKeeperServer) {
	for i, link := range g.links {
		if g.members[i] == s {
			link.Silence()
		} else {
			link.SeverTo(func(server string) bool { return g.owner[server] == s })
		}
	}
}

// Heal lets all members reach each other again.
func (g *ZooKeeperGroup) Heal() {
	for _, link := range g.links {
		link.Pass()
	}
}

// startZooKeeperCluster starts three members; link makes the proxy of each member's connections to the
// others, if any.
func startZooKeeperCluster(tb testing.TB, o ZooKeeperOptions, link func(testing.TB) *faultproxy.Proxy) *ZooKeeperGroup {
	tb.Helper()
	g := &ZooKeeperGroup{}
	g.tb, g.elected = tb, g.vote
	for range 3 {
		g.members = append(g.members, newZooKeeper(tb))
		if link != nil {
			g.links = append(g.links, link(tb))
		}
	}
	if err := thrice(func() error { return g.start(o) }); err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

func (g *ZooKeeperGroup) start(o ZooKeeperOptions) error {
	if err := g.introduce(&o); err != nil {
		return err
	}
	for i, s := range g.members {
		own := o
		if g.links != nil {
			_, port, _ := net.SplitHostPort(g.links[i].Addr())
			own.java = []string{"-DsocksProxyHost=127.0.0.1", "-DsocksProxyPort=" + port, "-DsocksNonProxyHosts="} // not even this host
		}
		if err := own.write(s); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.data(), "myid"), []byte(strconv.Itoa(i+1)), 0o600); err != nil {
			return err
		}
	}
	// No member serves before it has a leader, for which it takes two.
	return startTogether(g.processes()...)
}

// introduce chooses ports, and adds to the options what all members must know.
func (g *ZooKeeperGroup) introduce(o *ZooKeeperOptions) error {
	g.owner = map[string]*ZooKeeperServer{}
	// A member that hears nothing of the others for two seconds gives up.
	config := []string{"initLimit=25", "syncLimit=10"}
	for i, s := range g.members {
		os.RemoveAll(s.data())
		var ports [3]int
		for j := range ports {
			var err error
			if ports[j], err = freePort(); err != nil {
				return err
			}
			g.owner[loopback(ports[j])] = s
		}
		s.port = ports[0]
		config = append(config, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[1], ports[2]))
	}
	o.config = config
	return nil
}

// ZooKeeperShell returns ZooKeeper's own shell (zkCli.sh) at a server, not started yet. It reads its commands from
// the standard input.
func ZooKeeperShell(tb testing.TB, s *ZooKeeperServer) *exec.Cmd {
	tb.Helper()
	cli, err := debianJars("libcommons-cli-java", "commons-cli")
	if err != nil {
		missing(tb, "zookeeper", err)
	}
	jars := classPath(append(slices.Clone(s.jars), cli...))
	return exec.Command(s.path, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", jars, "org.apache.zookeeper.ZooKeeperMain", "-server", s.Addr())
}
