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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var etcdServer = &program{name: "etcd", env: "DISTLOCK_TEST_ETCD", debian: "etcd-server"}

// EtcdServer is one member of an etcd cluster, mostly the only one.
type EtcdServer struct {
	*Process
	options    EtcdOptions
	name       string
	port, peer int         // for clients, for members
	public     string      // the peer port's address, or the address of its proxy
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

// SharedEtcd returns a server that all tests of the process use: they must not stop it, and
// choose names of their own.
func SharedEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	return sharedEtcd.get(func() *EtcdServer { return startEtcd(tb, EtcdOptions{}) })
}

// Addr returns the host and port for clients.
func (s *EtcdServer) Addr() string { return loopback(s.port) }

// URL returns how etcdlock.Open reaches the server: as root, if it wants a password, and with
// the server's own certificate, if it wants one.
func (s *EtcdServer) URL() string {
	return s.options.url("root", s.options.Password, s.cert, s.key, s.Addr())
}

// Dir returns the folder that the server runs in.
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

// newEtcd returns a server that is not started yet.
func newEtcd(tb testing.TB, o EtcdOptions, name string) *EtcdServer {
	tb.Helper()
	path := etcdProgram(tb, etcdServer, o.Current)
	// The folder is for this user only, without which etcd does not start.
	dir, err := newDir("etcd")
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

// arguments returns the server's. Alone it is given a leader's heartbeats that are quick
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
// another server may have been quicker to take the port.
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

// EtcdOptions say how etcd's servers are set up. The zero value is one that any client may
// use; alone, it grants leases of a second, the least that etcd can.
type EtcdOptions struct {
	// Password is the password of the user root. With it, nobody may do anything who has not
	// logged in; AddUser makes others.
	Password string

	// TLS lets the server speak nothing else to its clients, and want a certificate of
	// theirs. The server's own does: see TLSConfig and Files.
	TLS bool

	// Args are further options, as on etcd's command line. What is given twice counts
	// as given last: "--election-timeout", "1000", "--heartbeat-interval", "100" are
	// etcd's own, with which no lease is shorter than two seconds.
	Args []string

	// Current asks for the current release instead of the installed one: the release that
	// interop/go.mod requires.
	Current bool
}

// url is that of servers, for one of their users.
func (o *EtcdOptions) url(user, password, cert, key string, addrs ...string) string {
	u := url.URL{Scheme: "etcd", Host: strings.Join(addrs, ",")}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	if o.TLS {
		u.Scheme = "etcds"
		u.RawQuery = url.Values{"ca": {cert}, "cert": {cert}, "key": {key}}.Encode()
	}
	return u.String()
}

// useTLS prepares the certificate, if one is wanted.
func (s *EtcdServer) useTLS() (err error) {
	if !s.options.TLS {
		return nil
	}
	c := ownCertificate()
	if s.cert, s.key, err = c.write(s.dir); err != nil {
		return err
	}
	own, err := tls.X509KeyPair(c.cert, c.key)
	s.tls = c.trust()
	s.tls.Certificates = []tls.Certificate{own}
	return err
}

func (s *EtcdServer) tlsArgs() []string {
	if s.tls == nil {
		return nil
	}
	return []string{"--cert-file", s.cert, "--key-file", s.key, "--trusted-ca-file", s.cert, "--client-cert-auth"}
}

func (s *EtcdServer) clientURL() string {
	if s.tls != nil {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}

// TLSConfig returns how clients reach the server; nil if it doesn't speak TLS.
func (s *EtcdServer) TLSConfig() *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Clone()
}

// Files returns the server's certificate, which signs itself, and its key, in PEM form; empty
// without TLS.
func (s *EtcdServer) Files() (cert, key string) { return s.cert, s.key }

var etcdctl = &program{name: "etcdctl", env: "DISTLOCK_TEST_ETCDCTL", debian: "etcd-client"}

var sharedCurrentEtcd shared[*EtcdServer]

// SharedCurrentEtcd is SharedEtcd of the current release; see EtcdOptions.Current.
func SharedCurrentEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	return sharedCurrentEtcd.get(func() *EtcdServer { return startEtcd(tb, EtcdOptions{Current: true}) })
}

// Etcdctl returns the path of etcd's command: the installed one, or the one of the current
// release.
func Etcdctl(tb testing.TB, current bool) string {
	tb.Helper()
	return etcdProgram(tb, etcdctl, current)
}

// etcdProgram returns the path of a program, the installed one or the one that make servers built.
func etcdProgram(tb testing.TB, p *program, current bool) string {
	tb.Helper()
	path, err := "", error(nil)
	if current {
		path, err = provided(p.name)
	} else {
		path, err = p.find()
	}
	if err != nil {
		missing(tb, "etcd", err)
	}
	return path
}
