//go:build unix

package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// serveOn starts a server, and returns a client for it.
func serveOn(t *testing.T, url string, args ...string) (*process, func(method, path string, header ...string) (int, string, http.Header)) {
	t.Helper()
	p := start(t, url, append([]string{"serve", "--listen", "127.0.0.1:0", "--drain", "0s"}, args...)...)
	p.out.await(t, " serves ")
	m := regexp.MustCompile(`(?m)^(127\S+) serves`).FindStringSubmatch(p.out.String())
	if m == nil {
		t.Fatalf("no address in %q", p.out.String())
	}
	return p, caller(t, http.DefaultClient, "http://"+m[1])
}

func caller(t *testing.T, c *http.Client, base string) func(method, path string, header ...string) (int, string, http.Header) {
	return func(method, path string, header ...string) (int, string, http.Header) {
		t.Helper()
		req := must.Get(http.NewRequestWithContext(t.Context(), method, base+path, nil))(t)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp := must.Get(c.Do(req))(t)
		defer resp.Body.Close()
		text := must.Get(io.ReadAll(resp.Body))(t)
		return resp.StatusCode, string(text), resp.Header
	}
}

// A server that is killed loses nothing: the next renews and releases what it granted.
func TestServeIsKilled(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	first, call := serveOn(t, url)
	status, text, h := call("POST", "/v1/locks/x?ttl=1m")
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	first.send(syscall.SIGKILL)
	first.code()
	owner := h.Get(httpwire.OwnerHeader)
	second, call := serveOn(t, url, "--access-log")
	if status, text, _ := call("PUT", "/v1/locks/x?ttl=2m", httpwire.OwnerHeader, owner); status != 204 {
		t.Errorf("renew: %d %s", status, text)
	}
	finishWith(t, url, 75, "run", "--no-wait", "x", "--", "true")
	if status, text, _ := call("DELETE", "/v1/locks/x", httpwire.OwnerHeader, owner); status != 204 {
		t.Errorf("release: %d %s", status, text)
	}
	finishWith(t, url, 0, "run", "--no-wait", "x", "--", "true")
	second.send(syscall.SIGTERM)
	second.must(0)
	if log := second.errors.String(); strings.Contains(log, owner) || !strings.Contains(log, `call="PUT /v1/locks/{name}" lock=x`) {
		t.Errorf("log: %s", log)
	}
}

func TestServeOnASocket(t *testing.T) {
	t.Parallel()
	url, path := lockFile(t), filepath.Join(t.TempDir(), "s")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} { // a killed server leaves its socket
		p := start(t, url, "serve", "--listen", "unix:"+path, "--drain", "0s", "--log", "json")
		p.out.await(t, " serves ")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket: %v, %v", info, err)
		}
		if status, text, _ := caller(t, client, "http://localhost")("GET", "/v1"); status != 200 || !strings.Contains(text, `"backend":"sqlite:`) {
			t.Errorf("%d %s", status, text)
		}
		finishWith(t, url, 69, "serve", "--listen", "unix:"+path).errors.await(t, "another server listens on "+path)
		p.send(end)
		p.code()
	}
	must.OK(t, os.WriteFile(path, nil, 0o600))
	finishWith(t, url, 69, "serve", "--listen", "unix:"+path).errors.await(t, "is there and is not a socket")
}

// authority returns who signs certificates, and the file of its own.
func authority(t *testing.T) (own *testcert.Authority, file string) {
	t.Helper()
	own = must.Get(testcert.Own())(t)
	return own, own.Files(t).Cert
}

// certificate writes a certificate for 127.0.0.1, and returns the files.
func certificate(t *testing.T, name string) (cert, key string, pair tls.Certificate) {
	t.Helper()
	own, _ := authority(t)
	p := must.Get(own.Sign(func(c *x509.Certificate) { c.Subject.CommonName = name }))(t)
	f := p.Files(t)
	return f.Cert, f.Key, p.TLS(t)
}

// Package httplock reaches a server that wants certificates of its clients.
func TestCertificates(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	_, ca := authority(t)
	running := map[string]string{}
	testcert.Try(t, testcert.Server{Show: func(t *testing.T, shown testcert.Pair, _ bool) string {
		addr := running[string(shown.Cert)]
		if addr == "" {
			f := shown.Files(t)
			p := start(t, url, "serve", "--listen", "127.0.0.1:0", "--tls-cert", f.Cert, "--tls-key", f.Key, "--client-ca", ca, "--drain", "0s")
			p.out.await(t, " serves ")
			addr, _, _ = strings.Cut(p.out.String(), " ")
			running[string(shown.Cert)] = addr
		}
		return "https://" + addr + "/?timeout=2m"
	}})
}

// With TLS, a client is known by its token or by its certificate.
func TestServeWithTLS(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	made := finishWith(t, url, 0, "token", "ci", "lock", "*").out.String()
	m := regexp.MustCompile(`^token: (\S+)\nline:  (.*)\n$`).FindStringSubmatch(made)
	if m == nil {
		t.Fatalf("token prints %q", made)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	must.OK(t, os.WriteFile(tokens, []byte(m[2]+"\nbilling cert:billing lock *\n"), 0o600))
	cert, key, _ := certificate(t, "server")
	own, clientCA := authority(t)
	_, _, clientPair := certificate(t, "billing")
	p := start(t, url, "serve", "--listen", "127.0.0.1:0", "--tokens", tokens, "--tls-cert", cert, "--tls-key", key, "--client-ca", clientCA, "--drain", "0s")
	p.out.await(t, " serves ")
	address, _, _ := strings.Cut(p.out.String(), " ")
	for certs, want := range map[*tls.Certificate]int{nil: 401, &clientPair: 200} {
		config := &tls.Config{RootCAs: own.Roots()}
		if certs != nil {
			config.Certificates = []tls.Certificate{*certs}
		}
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		call := caller(t, c, "https://"+address)
		if status, text, _ := call("GET", "/v1"); status != want {
			t.Errorf("%d %s; want %d", status, text, want)
		}
		if status, text, _ := call("GET", "/v1", "Authorization", "Bearer "+m[1]); status != 200 {
			t.Errorf("with a token: %d %s", status, text)
		}
		c.CloseIdleConnections()
	}
	p.send(syscall.SIGTERM)
	p.must(0)
	if strings.Contains(p.errors.String(), m[1]) {
		t.Error("the log has the token")
	}
}

// A certificate that is replaced is shown to the next client, with SIGHUP or without; one that can't be used is not.
func TestServeReadsCertificatesAgain(t *testing.T) {
	t.Parallel()
	own, clientCA := authority(t)
	cert, key, first := certificate(t, "first")
	p := start(t, lockFile(t), "serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", clientCA, "--drain", "0s")
	p.out.await(t, " serves ")
	address, _, _ := strings.Cut(p.out.String(), " ")
	shows := func(want string) {
		t.Helper()
		c := must.Get(tls.Dial("tcp", address, &tls.Config{RootCAs: own.Roots(), Certificates: []tls.Certificate{first}}))(t)
		defer c.Close()
		if got := c.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("the server shows %q; want %q", got, want)
		}
	}
	replace := func(path, by string) {
		t.Helper()
		must.OK(t, os.Rename(by, path))
	}
	shows("first")
	nextCert, nextKey, _ := certificate(t, "second")
	replace(cert, nextCert)
	p.send(syscall.SIGHUP)
	p.errors.await(t, "the files of TLS were not read again")
	shows("first")
	replace(key, nextKey)
	shows("second")
	p.send(syscall.SIGTERM)
	p.must(0)
}

// A server that strangers could reach does not start unless it knows who calls.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	url := lockFile(t)
	cert, key, _ := certificate(t, "server")
	empty := filepath.Join(t.TempDir(), "empty")
	must.OK(t, os.WriteFile(empty, []byte("ci secret lock *\n"), 0o600))
	for _, c := range []struct {
		says string
		args []string
	}{
		{"others can reach 0.0.0.0:0: want --tls-cert and --tls-key, or --insecure", []string{"--listen", "0.0.0.0:0"}},
		{"others can reach :0: want --tokens or --client-ca, or --insecure", []string{"--listen", ":0", "--tls-cert", cert, "--tls-key", key}},
		{"--listen 7077: want HOST:PORT, such as 127.0.0.1:7077, or unix:PATH", []string{"--listen", "7077"}},
		{"--listen unix:: want the path of a socket", []string{"--listen", "unix:"}},
		{"--listen unix:@x: want the path of a socket", []string{"--listen", "unix:@x"}},
		{"want both --tls-cert and --tls-key", []string{"--tls-cert", cert}},
		{"--client-ca needs --tls-cert and --tls-key", []string{"--client-ca", cert}},
		{": want a file of certificates in PEM form", []string{"--tls-cert", cert, "--tls-key", key, "--client-ca", empty}},
		{"no such file", []string{"--tls-cert", "nowhere", "--tls-key", key}},
		{"line 1: the second field", []string{"--tokens", empty}},
		{"want flags only", []string{"redis://x"}},
	} {
		p := finishWith(t, url, 64, append([]string{"serve"}, c.args...)...)
		if text := p.errors.String(); !strings.Contains(text, c.says) {
			t.Errorf("%v: %s; want %q", c.args, text, c.says)
		}
	}
	finishWith(t, url, 69, "serve", "--listen", "127.0.0.1:x")
	zk := testserver.SharedZooKeeper(t).URL()
	p := finish(t, zk, "serve", "--listen", "127.0.0.1:0")
	for end := time.Now().Add(patience); p.ProcessState.ExitCode() == exitUnreachable && time.Now().Before(end); {
		p = finish(t, zk, "serve", "--listen", "127.0.0.1:0")
	}
	if text := p.errors.String(); p.ProcessState.ExitCode() != 64 || !strings.Contains(text, "can't be served: its locks belong to the connection") {
		t.Error(p.ProcessState, text)
	}
	finishWith(t, url, 64, "token", "ci", "look", "*")
	finishWith(t, url, 64, "token", "#ci", "lock", "*")
}

// Errors that net/http logs are reported, but not those that any stranger can cause.
func TestHTTPErrors(t *testing.T) {
	var got []string
	l := log.New(httpErrors(func(err error) { got = append(got, err.Error()) }), "", 0)
	l.Printf("http: TLS handshake error from 10.0.0.1:5: EOF")
	l.Printf("http: Accept error: too many open files; retrying in 1s")
	if want := []string{"http: Accept error: too many open files; retrying in 1s"}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}

// A further host name can be allowed beside the names of this host, which no page of a stranger has.
func TestHostNames(t *testing.T) {
	t.Parallel()
	name := must.Get(os.Hostname())(t)
	local, remote := []string{"127.0.0.1:7077", "[::1]:7077", "unix:/s"}, []string{"127.0.0.1:7077", "10.0.0.1:7077"}
	for _, c := range []struct {
		o    serveOptions
		want []string
	}{
		{serveOptions{listen: local}, []string{"localhost"}},
		{serveOptions{listen: local, tokens: "tokens"}, []string{"localhost"}},
		{serveOptions{listen: local, hosts: []string{"Lock.example"}}, []string{"localhost", "Lock.example"}},
		{serveOptions{listen: local, hosts: []string{"*"}}, nil},
		{serveOptions{listen: remote, insecure: true}, []string{"localhost", name}},
		{serveOptions{listen: remote, insecure: true, hosts: []string{"a", "b"}}, []string{"localhost", name, "a", "b"}},
		{serveOptions{listen: remote, insecure: true, hosts: []string{"a", "*"}}, nil},
		{serveOptions{listen: remote, tokens: "tokens"}, nil},
		{serveOptions{listen: remote, clientCA: "ca.pem"}, nil},
		{serveOptions{listen: remote, tokens: "tokens", hosts: []string{"a"}}, []string{"localhost", name, "a"}},
	} {
		if got := c.o.hostNames(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.o, got, c.want)
		}
	}
}

// Through a server the commands do what they do with its backend. Its memory is no other process's, but all
// reach it.
func TestCommandsThroughServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	start(t, "mem:", "serve", "--listen", "unix:"+path, "--drain", "0s").out.await(t, " serves ")
	url := "http+unix://" + path
	held := start(t, url, "run", "door", "--", "sh", "-c", "echo inside $DISTLOCK_FENCE; exec sleep 60")
	held.out.await(t, "inside 1")
	finishWith(t, url, exitBusy, "run", "--no-wait", "door", "--", "true")
	finishWith(t, url, 0, "ls").out.await(t, "door")
	finishWith(t, url, 0, "show", "door").out.await(t, "program  sh")
	finishWith(t, url, 0, "unlock", "--ask", "door")
	held.must(128 + 15)
	held = start(t, url, "run", "--ttl", "15s", "door", "--", "sh", "-c", "echo inside; exec sleep 60")
	held.out.await(t, "inside")
	finishWith(t, url, 0, "unlock", "--force", "door")
	held.must(exitLost)
	finishWith(t, url, 0, "run", "--no-wait", "door", "--", "true")
}
