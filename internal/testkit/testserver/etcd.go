package testserver

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
)

// EtcdServer is one member of an etcd cluster, mostly the only one.
type EtcdServer struct {
	*Process
	options   EtcdOptions
	name      string
	peer      int         // port for members
	public    string      // the peer port's address, or the address of its proxy
	tls       *tls.Config // for clients
	cert, key string      // files
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

var sharedCurrentEtcd shared[*EtcdServer]

// SharedCurrentEtcd is SharedEtcd of the current release; see EtcdOptions.Current.
func SharedCurrentEtcd(tb testing.TB) *EtcdServer {
	tb.Helper()
	return sharedCurrentEtcd.get(func() *EtcdServer { return startEtcd(tb, EtcdOptions{Current: true}) })
}

// URL returns how etcdlock.Open reaches the server: as root, if it wants a password, and with
// the server's own certificate, if it wants one.
func (s *EtcdServer) URL() string { return s.url("root", s.options.Password) }

// startEtcd starts a server whose heartbeats are quick enough for a lease of a second.
func startEtcd(tb testing.TB, o EtcdOptions) *EtcdServer {
	tb.Helper()
	o.Args = append([]string{"--heartbeat-interval", "20", "--election-timeout", "100", "--bcrypt-cost", "4"}, o.Args...)
	direct := func(*EtcdServer) *faultproxy.Proxy { return nil }
	return startEtcdCluster(tb, o, 1, direct).members[0]
}

// newEtcd returns a server that is not started yet.
func newEtcd(tb testing.TB, o EtcdOptions, name string) *EtcdServer {
	tb.Helper()
	s := &EtcdServer{Process: newProcess(tb, "etcd", etcdProgram("etcd", o.Current)), options: o, name: name}
	s.ready = s.healthy
	s.usable(s.useTLS())
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

// arguments returns those of a member of a cluster, which is as in --initial-cluster.
func (s *EtcdServer) arguments(cluster string) []string {
	client, tlsArgs := s.clientURL(), []string(nil)
	if s.tls != nil {
		tlsArgs = []string{"--cert-file", s.cert, "--key-file", s.key, "--trusted-ca-file", s.cert, "--client-cert-auth"}
	}
	return slices.Concat([]string{
		"--name", s.name, "--data-dir", s.data(), "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + loopback(s.peer), "--initial-advertise-peer-urls", "http://" + s.public,
		"--initial-cluster", cluster,
	}, tlsArgs, s.options.Args)
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
func (s *EtcdServer) post(timeout time.Duration, path, token string, body, into any) error {
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
	// Password is the password of the user root. With it, no client may do anything that has not
	// logged in; AddUser makes other users.
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

// url returns how a user reaches the server, and others of its cluster.
func (s *EtcdServer) url(user, password string, others ...string) string {
	u := url.URL{Scheme: "etcd", Host: strings.Join(append([]string{s.Addr()}, others...), ",")}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	if s.tls != nil {
		u.Scheme = "etcds"
		u.RawQuery = url.Values{"ca": {s.cert}, "cert": {s.cert}, "key": {s.key}}.Encode()
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

// Etcdctl returns the path of etcd's command: the installed one, or the one of the current
// release.
func Etcdctl(tb testing.TB, current bool) string {
	tb.Helper()
	return etcdProgram("etcdctl", current).must(tb, "etcd")
}

// etcdProgram returns a program of etcd: the installed one, or the one that make servers built.
func etcdProgram(name string, current bool) *program {
	switch {
	case current:
		return &program{cached: name}
	case name == "etcd":
		return &program{name: name, env: "DISTLOCK_TEST_ETCD", debian: "etcd-server"}
	}
	return &program{name: name, env: "DISTLOCK_TEST_ETCDCTL", debian: "etcd-client"}
}
