package testserver

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// KubeServer is an API server of Kubernetes before an etcd of its own. There is no other part of a cluster: nothing runs in it.
// Its users have tokens: see User.
type KubeServer struct {
	*Process
	tb   testing.TB // the one that uses it
	etcd *EtcdServer
	cert string // its own, which signs itself
	tls  *tls.Config
}

// kubeAdmin is the user who may do all. Its name is its token, as for all users.
const kubeAdmin = "admin"

// KubeUsers are users who may do nothing until a Role lets them.
var KubeUsers = []string{"app", "other"}

// Kube starts a server of the test's own. Only tests that are TestLong may use it: make test-long alone builds it.
func Kube(tb testing.TB) *KubeServer {
	tb.Helper()
	s := startKube(tb)
	tb.Cleanup(s.end)
	return s
}

var sharedKube shared[*KubeServer]

// SharedKube returns a server that all tests of the process use: they must not stop it while others run, and choose namespaces of their own.
func SharedKube(tb testing.TB) *KubeServer {
	tb.Helper()
	s := *sharedKube.get(func() *KubeServer { return startKube(tb) })
	s.tb = tb
	return &s
}

func startKube(tb testing.TB) *KubeServer {
	tb.Helper()
	s := &KubeServer{tb: tb, Process: newProcess(tb, "kube", &program{cached: "kube-apiserver"})}
	s.etcd = startEtcd(tb, EtcdOptions{Current: true})
	s.ready = func() error { return s.request(http.MethodGet, "/readyz", nil, nil) }
	own, f, err := ownFiles(s.dir)
	if err == nil {
		s.cert = f.Cert
		s.tls, err = trust(own)
	}
	if err == nil {
		err = s.writeFiles()
	}
	if err == nil {
		err = s.launch(func() error { s.args = s.arguments(f.Key); return nil })
	}
	s.usable(err)
	return s
}

// writeFiles writes the key of service accounts, and the tokens.
func (s *KubeServer) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	tokens := kubeAdmin + "," + kubeAdmin + "," + kubeAdmin + ",system:masters\n"
	for _, user := range KubeUsers {
		tokens += user + "," + user + "," + user + "\n"
	}
	return errors.Join(os.WriteFile(filepath.Join(s.dir, "accounts.key"), text, 0o600), os.WriteFile(filepath.Join(s.dir, "tokens"), []byte(tokens), 0o600))
}

func (s *KubeServer) arguments(key string) []string {
	accounts := filepath.Join(s.dir, "accounts.key")
	return []string{
		"--etcd-servers", s.etcd.clientURL(), "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(s.port),
		"--tls-cert-file", s.cert, "--tls-private-key-file", key, "--client-ca-file", s.cert,
		"--token-auth-file", filepath.Join(s.dir, "tokens"), "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", accounts, "--service-account-signing-key-file", accounts,
		"--profiling=false", "--shutdown-delay-duration", "0s",
	}
}

// end ends both servers.
func (s *KubeServer) end() {
	s.Process.end()
	s.etcd.end()
}

// Server returns the URL of the API.
func (s *KubeServer) Server() string { return "https://" + s.Addr() }

// CA returns the file of the certificate that clients trust.
func (s *KubeServer) CA() string { return s.cert }

// Etcd returns where the server keeps all.
func (s *KubeServer) Etcd() *EtcdServer { return s.etcd }

// Plain returns an address at which the server is reached without TLS, so that a proxy before it can read what it loses.
func (s *KubeServer) Plain() string {
	s.tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go s.pass(client)
		}
	}()
	return l.Addr().String()
}

// senderGone is how long the server does not learn that a sender has gone: it drops requests of those, and an answer that is lost is
// one to a request that took effect.
const senderGone = 100 * time.Millisecond

// pass passes on what a client sends, and what the server answers.
func (s *KubeServer) pass(client net.Conn) {
	defer client.Close()
	server, err := tls.Dial("tcp", s.Addr(), s.TLSConfig())
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		io.Copy(server, client)
		time.Sleep(senderGone)
		server.CloseWrite()
	}()
	io.Copy(client, server)
}

// TLSConfig returns how clients reach the server.
func (s *KubeServer) TLSConfig() *tls.Config {
	return &tls.Config{RootCAs: s.tls.RootCAs, MinVersion: tls.VersionTLS12}
}

// Do makes a request as a user who may do all. into, if not nil, gets the answer.
func (s *KubeServer) Do(method, path string, body, into any) {
	s.tb.Helper()
	err := s.request(method, path, body, into)
	var broken *url.Error
	for began := time.Now(); errors.As(err, &broken) && time.Since(began) < startTimeout; { // a busy server ends connections
		time.Sleep(10 * time.Millisecond)
		err = s.request(method, path, body, into)
		if err != nil && into == nil && (strings.Contains(err.Error(), " 409 ") || method == http.MethodDelete && strings.Contains(err.Error(), " 404 ")) {
			return // by the request without an answer
		}
	}
	if err != nil {
		s.tb.Fatalf("testserver: %v", err)
	}
}

func (s *KubeServer) request(method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, s.Server()+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+kubeAdmin)
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.TLSConfig()}, Timeout: startTimeout}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s answers %s %s with %s: %s", s.Addr(), method, path, resp.Status, tail(string(answer), 300))
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// Namespace makes a namespace of a random name, and returns that.
func (s *KubeServer) Namespace() string {
	s.tb.Helper()
	name := "test-" + strings.ToLower(rand.Text())
	s.Do(http.MethodPost, "/api/v1/namespaces", body{"metadata": body{"name": name}}, nil)
	return name
}

// Kubeconfig writes a kubeconfig whose current context is of a user with a token, and returns its path. server is the URL of the API, or of
// a proxy before it.
func (s *KubeServer) Kubeconfig(server, user string) string {
	s.tb.Helper()
	config := body{
		"current-context": "test", "contexts": []body{{"name": "test", "context": body{"cluster": "test", "user": user}}},
		"clusters": []body{{"name": "test", "cluster": body{"server": server, "certificate-authority": s.cert}}},
		"users":    []body{{"name": user, "user": body{"token": user}}},
	}
	text, err := json.Marshal(config)
	path := filepath.Join(s.tb.TempDir(), "kubeconfig")
	if err = errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

// URL returns how kubelock.Open reaches a namespace as a user who may do all.
func (s *KubeServer) URL(namespace string) string { return s.URLAs(kubeAdmin, namespace) }

// URLAs is URL for another user.
func (s *KubeServer) URLAs(user, namespace string) string {
	s.tb.Helper()
	return "kube:///" + namespace + "?" + url.Values{"kubeconfig": {s.Kubeconfig(s.Server(), user)}, "timeout": {"2m"}}.Encode()
}

// Compact lets the server's etcd forget all but what is now.
func (s *KubeServer) Compact() {
	s.tb.Helper()
	var now struct{ Header struct{ Revision string } }
	err := s.etcd.post(startTimeout, "/v3/kv/range", "", body{"key": []byte("none")}, &now)
	if err == nil {
		err = s.etcd.post(startTimeout, "/v3/kv/compaction", "", body{"revision": now.Header.Revision, "physical": true}, new(any))
	}
	if err != nil {
		s.tb.Fatalf("testserver: compact: %v", err)
	}
}
