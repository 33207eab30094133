package testserver

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
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

// choosePorts chooses two free ports. A failed start may have left data of other ports.
func (s *EtcdServer) choosePorts() (err error) {
	os.RemoveAll(s.data())
	if s.port, err = freePort(); err == nil {
		s.peer, err = freePort()
	}
	return err
}

// arguments returns the arguments of a member. cluster has the format of --initial-cluster.
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

	// Args are further options, as on etcd's command line. The last value of a repeated option
	// counts: "--election-timeout", "1000", "--heartbeat-interval", "100" are etcd's own, with
	// which no lease is shorter than two seconds.
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
	own, f, err := ownFiles(s.dir)
	if err == nil {
		s.cert, s.key = f.Cert, f.Key
		s.tls, err = trust(own)
	}
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

// EtcdClusterGroup is three members of one etcd cluster. A leader that dies is replaced
// in about a second.
type EtcdClusterGroup struct {
	group[*EtcdServer]
	links []*faultproxy.Proxy // through which each member is reached by the others
}

// EtcdCluster starts a cluster of the test's own, and returns when all members have a
// leader. It takes about two seconds. No lease is shorter than a second.
func EtcdCluster(tb testing.TB, o EtcdOptions) *EtcdClusterGroup {
	tb.Helper()
	g := startThreeEtcd(tb, o, func(s *EtcdServer) *faultproxy.Proxy { return faultproxy.New(tb, loopback(s.peer)) })
	tb.Cleanup(g.end)
	return g
}

var sharedEtcdCluster shared[*EtcdClusterGroup]

// SharedEtcdCluster returns a cluster that all tests of the process use: none may stop any of
// it, or cut it in parts.
func SharedEtcdCluster(tb testing.TB) *EtcdClusterGroup {
	tb.Helper()
	direct := func(*EtcdServer) *faultproxy.Proxy { return nil }
	g := *sharedEtcdCluster.get(func() *EtcdClusterGroup { return startThreeEtcd(tb, EtcdOptions{}, direct) })
	g.tb = tb
	return &g
}

// URL returns how etcdlock.Open reaches the cluster; as EtcdServer.URL.
func (g *EtcdClusterGroup) URL() string {
	s := g.members[0]
	return s.url("root", s.options.Password, g.Addrs()[1:]...)
}

// vote returns the leader of two members at least; old has no say in it, and is not the leader.
func (g *EtcdClusterGroup) vote(old *EtcdServer) (*EtcdServer, error) {
	votes, ids := map[string]int{}, map[string]*EtcdServer{}
	for _, s := range g.without(old) {
		self, leader, err := s.leader()
		if err == nil {
			ids[self] = s
			votes[leader]++
		}
	}
	for id, n := range votes {
		if n > 1 && ids[id] != nil {
			return ids[id], nil
		}
	}
	return nil, fmt.Errorf("the members name %v: %w", votes, errNotYet)
}

// leader returns the ids of the server and of the member that it takes for the leader, which may be itself.
func (s *EtcdServer) leader() (self, leader string, err error) {
	token, err := s.login(pollTimeout)
	if err != nil {
		return "", "", err
	}
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	err = s.post(pollTimeout, "/v3/maintenance/status", token, body{}, &status)
	return status.Header.Member, status.Leader, err
}

// Isolate cuts a member off from the others; clients reach it as before. Heal ends it.
// A cluster is in two parts at most: another call changes which.
func (g *EtcdClusterGroup) Isolate(s *EtcdServer) {
	g.tb.Helper()
	if runtime.GOOS != "linux" {
		g.tb.Fatal("testserver: only Linux tells whose a connection is")
	}
	for i, link := range g.links {
		if g.members[i] == s {
			link.Silence()
			continue
		}
		link.Sever(func(c net.Conn) bool { return owns(s.PID(), c) })
	}
}

// Heal lets all members reach each other again.
func (g *EtcdClusterGroup) Heal() {
	for _, link := range g.links {
		link.Pass()
	}
}

func startThreeEtcd(tb testing.TB, o EtcdOptions, link func(*EtcdServer) *faultproxy.Proxy) *EtcdClusterGroup {
	tb.Helper()
	// These timeouts avoid most elections that a busy machine would cause.
	o.Args = append([]string{"--heartbeat-interval", "50", "--election-timeout", "500"}, o.Args...)
	return startEtcdCluster(tb, o, 3, link)
}

// startEtcdCluster starts members; link makes the proxy in front of a member's peer port, if any.
func startEtcdCluster(tb testing.TB, o EtcdOptions, members int, link func(*EtcdServer) *faultproxy.Proxy) *EtcdClusterGroup {
	tb.Helper()
	g := &EtcdClusterGroup{}
	g.tb, g.elected = tb, g.vote
	for i := range members {
		g.members = append(g.members, newEtcd(tb, o, fmt.Sprintf("etcd%d", i)))
	}
	err := thrice(func() error { return g.start(link) })
	if err == nil {
		err = g.members[0].protect()
	}
	if err != nil {
		g.end()
		tb.Fatalf("testserver: %v", err)
	}
	return g
}

func (g *EtcdClusterGroup) start(link func(*EtcdServer) *faultproxy.Proxy) error {
	var all []string
	g.links = nil
	for _, s := range g.members {
		if err := s.choosePorts(); err != nil {
			return err
		}
		s.public = loopback(s.peer)
		if l := link(s); l != nil {
			g.links = append(g.links, l)
			s.public = l.Addr()
		}
		all = append(all, s.name+"=http://"+s.public)
	}
	for _, s := range g.members {
		s.args = s.arguments(strings.Join(all, ","))
	}
	return startTogether(g.processes()...) // no member answers before there is a leader
}

// EtcdGrant lets a user do something with all keys that begin with Prefix.
type EtcdGrant struct {
	Prefix      string
	Read, Write bool
}

func (g EtcdGrant) kind() string {
	switch {
	case g.Read && g.Write:
		return "READWRITE"
	case g.Write:
		return "WRITE"
	}
	return "READ"
}

// AddUser makes a user who may do what is granted, and returns the URL for that user.
func (s *EtcdServer) AddUser(name, password string, grants ...EtcdGrant) string {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		err = s.addUser(token, name, password, grants)
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
	return s.url(name, password)
}

// RevokePrefix takes what a user may do with a prefix.
func (s *EtcdServer) RevokePrefix(name, prefix string) {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		key := []byte(prefix)
		err = s.posts(token, call{"role/revoke", body{"role": name, "key": key, "range_end": successor(key)}})
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
}

// GrantPrefix gives a user a right on a prefix.
func (s *EtcdServer) GrantPrefix(name string, g EtcdGrant) {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		err = s.grant(token, name, g)
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
}

// SetPassword changes a user's password, and ends the user's logins.
func (s *EtcdServer) SetPassword(name, password string) {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		err = s.posts(token, call{"user/changepw", body{"name": name, "password": password}})
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
}

type body map[string]any

func (s *EtcdServer) grant(token, name string, g EtcdGrant) error {
	key := []byte(g.Prefix)
	perm := body{"permType": g.kind(), "key": key, "range_end": successor(key)}
	return s.posts(token, call{"role/grant", body{"name": name, "perm": perm}})
}

func (s *EtcdServer) addUser(token, name, password string, grants []EtcdGrant) error {
	err := s.posts(token, call{"user/add", body{"name": name, "password": password}},
		call{"role/add", body{"name": name}}, call{"user/grant", body{"user": name, "role": name}})
	for _, g := range grants {
		if err == nil {
			err = s.grant(token, name, g)
		}
	}
	return err
}

// successor returns the first key behind all that begin with prefix; for an empty one what
// etcd takes for the end of all.
func successor(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) == 0 {
		return []byte{0}
	}
	end[len(end)-1]++
	return end
}

// Protect gives root a password: from now on no other user may do anything.
func (s *EtcdServer) Protect(password string) {
	s.tb.Helper()
	s.options.Password = password
	if err := s.protect(); err != nil {
		s.tb.Fatalf("testserver: %v", err)
	}
}

// protect lets root alone in, if there is a password.
func (s *EtcdServer) protect() error {
	if s.options.Password == "" {
		return nil
	}
	return s.posts("", call{"user/add", body{"name": "root", "password": s.options.Password}},
		call{"user/grant", body{"user": "root", "role": "root"}}, call{"enable", body{}})
}

// login returns a token that root may use for some minutes.
func (s *EtcdServer) login(timeout time.Duration) (string, error) {
	if s.options.Password == "" {
		return "", nil
	}
	var answer struct{ Token string }
	err := s.post(timeout, "/v3/auth/authenticate", "", body{"name": "root", "password": s.options.Password}, &answer)
	return answer.Token, err
}

type call struct {
	to   string
	body body
}

// posts makes calls that change who may do what, one after the other.
func (s *EtcdServer) posts(token string, calls ...call) error {
	for _, c := range calls {
		if err := s.change(token, c); err != nil {
			return err
		}
	}
	return nil
}

// change makes a call. It repeats a call whose outcome the server does not know, and which
// may have been done.
func (s *EtcdServer) change(token string, c call) error {
	deadline := time.Now().Add(startTimeout)
	for first := true; ; first = false {
		err := s.post(startTimeout, "/v3/auth/"+c.to, token, c.body, new(any))
		if err != nil && !first && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		if !errors.Is(err, errNotYet) || time.Now().After(deadline) {
			return err
		}
	}
}
