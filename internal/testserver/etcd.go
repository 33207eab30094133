package testserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var etcdServer = &program{name: "etcd", env: "DISTLOCK_TEST_ETCD", dirs: []string{"/usr/bin", "/usr/local/bin"}, debian: "etcd-server"}

// EtcdOptions say how an etcd server is set up. The zero value is one that anybody may
// use, and that grants leases of a second: the least that etcd can.
type EtcdOptions struct {
	// Args are further options, as on etcd's command line. What is given twice counts
	// as given last: "--election-timeout", "1000", "--heartbeat-interval", "100" are
	// etcd's own, with which no lease is shorter than two seconds.
	Args []string

	// Current asks for the current release instead of the installed one: the release that
	// the module in interop/etcd requires, built by Go, which takes minutes the first time.
	Current bool
}

// EtcdServer is one member of an etcd cluster, mostly the only one.
type EtcdServer struct {
	*Process
	options    EtcdOptions
	port, peer int // for clients, for members
}

// Etcd starts a server of the test's own, a cluster of one.
func Etcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	s := startEtcd(tb, o)
	tb.Cleanup(s.end)
	return s
}

var sharedEtcd struct {
	sync.Mutex
	*EtcdServer
}

// SharedEtcd is a server that all tests of the process use: they must not stop it, and
// choose names of their own.
func SharedEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	sharedEtcd.Lock()
	defer sharedEtcd.Unlock()
	if sharedEtcd.EtcdServer == nil {
		sharedEtcd.EtcdServer = startEtcd(tb, EtcdOptions{})
		atExit(sharedEtcd.end)
	}
	return sharedEtcd.EtcdServer
}

// Addr is the host and port for clients.
func (s *EtcdServer) Addr() string { return loopback(s.port) }

// URL is how etcdlock.Open reaches the server.
func (s *EtcdServer) URL() string { return "etcd://" + s.Addr() }

// Dir is the folder that the server runs in.
func (s *EtcdServer) Dir() string { return s.dir }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func startEtcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	s := newEtcd(tb, o)
	if err := s.launch(); err != nil {
		s.end()
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// newEtcd is a server that is not started yet.
func newEtcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	path, err := o.program()
	if err != nil {
		missing(tb, "etcd", err)
	}
	// The folder is for this user only, without which etcd does not start.
	dir, err := os.MkdirTemp("", "distlock-etcd-")
	if err != nil {
		tb.Fatal(err)
	}
	s := &EtcdServer{Process: &Process{tb: tb, path: path, dir: dir}, options: o}
	s.ready = s.healthy
	return s
}

// launch starts the server, alone, on two free ports.
func (s *EtcdServer) launch() error {
	return launch(func(port int) error {
		peer, err := freePort()
		if err != nil {
			return err
		}
		s.port, s.peer = port, peer
		s.args = s.arguments()
		// A failed start may have left a cluster of another port's.
		os.RemoveAll(s.data())
		return s.start()
	})
}

func (s *EtcdServer) data() string { return filepath.Join(s.dir, "data") }

// arguments are the server's, with a leader's heartbeats that are quick enough for a
// lease of a second. They change nothing else in a cluster of one.
func (s *EtcdServer) arguments() []string {
	client, peer := "http://"+s.Addr(), "http://"+loopback(s.peer)
	return slices.Concat([]string{
		"--name", "etcd", "--data-dir", s.data(), "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "etcd=" + peer,
		"--heartbeat-interval", "20", "--election-timeout", "100",
	}, s.options.Args)
}

// healthy succeeds if the server has a leader and takes requests. It must be this one:
// somebody else's may have been quicker to take the port.
func (s *EtcdServer) healthy() error {
	var health struct{ Health string }
	if err := s.get("/health", &health); err != nil {
		return err
	}
	if health.Health != "true" {
		return fmt.Errorf("%s says that its health is %q: %w", s.Addr(), health.Health, errNotYet)
	}
	var vars struct{ Cmdline []string }
	if err := s.get("/debug/vars", &vars); err == nil && len(vars.Cmdline) > 0 && !strings.Contains(strings.Join(vars.Cmdline, " "), s.dir) {
		return fmt.Errorf("another server has the port: %v", vars.Cmdline)
	}
	return nil
}

// get reads one of the server's pages for programs.
func (s *EtcdServer) get(path string, into any) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	resp, err := client.Get("http://" + s.Addr() + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s with %s: %w", s.Addr(), path, resp.Status, errNotYet)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
