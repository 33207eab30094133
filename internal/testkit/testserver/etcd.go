package testserver

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var etcdServer = &program{name: "etcd", env: "DISTLOCK_TEST_ETCD", dirs: []string{"/usr/bin", "/usr/local/bin"}, debian: "etcd-server"}

// EtcdServer is one member of an etcd cluster, mostly the only one.
type EtcdServer struct {
	*Process
	options    EtcdOptions
	name       string
	port, peer int         // for clients, for members
	public     string      // the peer port's address, or that of what stands in front of it
	members    string      // of the cluster, as in --initial-cluster; empty: this one
	tls        *tls.Config // for clients
	cert, key  string      // files
}

// Etcd starts a server of the test's own, a cluster of one.
func Etcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	s := startEtcd(tb, o)
	tb.Cleanup(s.end)
	return s
}

var sharedEtcd shared[*EtcdServer]

// SharedEtcd is a server that all tests of the process use: they must not stop it, and
// choose names of their own.
func SharedEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	return sharedEtcd.get(func() *EtcdServer { return startEtcd(tb, EtcdOptions{}) })
}

// Addr is the host and port for clients.
func (s *EtcdServer) Addr() string { return loopback(s.port) }

// URL is how etcdlock.Open reaches the server: as root, if it wants a password, and with
// the server's own certificate, if it wants one.
func (s *EtcdServer) URL() string {
	return s.options.url("root", s.options.Password, s.cert, s.key, s.Addr())
}

// Dir is the folder that the server runs in.
func (s *EtcdServer) Dir() string { return s.dir }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func startEtcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	s := newEtcd(tb, o, "etcd")
	err := launch(func(int) error {
		if err := s.settle(); err != nil {
			return err
		}
		s.public = loopback(s.peer)
		return s.start()
	})
	if err == nil {
		err = s.protect()
	}
	if err != nil {
		s.end()
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// newEtcd is a server that is not started yet.
func newEtcd(tb testing.TB, o EtcdOptions, name string) *EtcdServer {
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
	s := &EtcdServer{Process: &Process{tb: tb, path: path, dir: dir}, options: o, name: name}
	s.ready = s.healthy
	if err := s.useTLS(); err != nil {
		s.end()
		tb.Fatal(err)
	}
	return s
}

// settle chooses two free ports. A failed start may have left data of other ports.
func (s *EtcdServer) settle() (err error) {
	os.RemoveAll(s.data())
	if s.port, err = freePort(); err == nil {
		s.peer, err = freePort()
	}
	return err
}

func (s *EtcdServer) data() string { return filepath.Join(s.dir, "data") }

func (s *EtcdServer) start() error {
	s.args = s.arguments()
	return s.Process.start()
}

// arguments are the server's. Alone it is given a leader's heartbeats that are quick
// enough for a lease of a second.
func (s *EtcdServer) arguments() []string {
	client, public := s.clientURL(), "http://"+s.public
	return slices.Concat([]string{
		"--name", s.name, "--data-dir", s.data(), "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + loopback(s.peer), "--initial-advertise-peer-urls", public,
		"--initial-cluster", cmp.Or(s.members, s.name+"="+public),
		"--heartbeat-interval", "20", "--election-timeout", "100",
	}, s.tlsArgs(), s.options.Args)
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
	return s.request(http.MethodGet, path, "", nil, into, pollTimeout)
}

// post calls the server's API in its JSON form, in which keys and values are base64, as
// encoding/json has a []byte. token is of a login, or empty.
func (s *EtcdServer) post(path, token string, body, into any) error {
	return s.postWithin(startTimeout, path, token, body, into)
}

func (s *EtcdServer) postWithin(timeout time.Duration, path, token string, body, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return s.request(http.MethodPost, path, token, bytes.NewReader(b), into, timeout)
}

// request returns an errNotYet if the server cannot serve the request now: it has no leader,
// say, or its disk is slow.
func (s *EtcdServer) request(method, path, token string, body io.Reader, into any, timeout time.Duration) error {
	req, err := http.NewRequest(method, s.clientURL()+path, body)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.tls}, Timeout: timeout}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		err := fmt.Errorf("%s answers %s with %s: %s", s.Addr(), path, resp.Status, tail(string(text), 200))
		if resp.StatusCode >= http.StatusInternalServerError {
			err = fmt.Errorf("%w: %w", err, errNotYet)
		}
		return err
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
