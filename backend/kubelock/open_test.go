package kubelock

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testcert"
)

func open(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(t.Context(), url)
	for began := time.Now(); err != nil && !driver.Final(err) && time.Since(began) < locktest.Patience; { // a busy server ends connections
		b, err = Open(t.Context(), url)
	}
	must.OK(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func request(name string) driver.Request {
	return driver.Request{Hold: driver.Hold{Name: name, Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: driverTTL}, Fences: 1}
}

func TestWrongURLs(t *testing.T) {
	t.Parallel()
	config := "?kubeconfig=" + url.QueryEscape(newFake(t).kubeconfig(map[string]any{"token": "hunter2"}))
	for raw, words := range map[string][]string{
		"kube:shop":                      {"kube:///namespace"},
		"kube://shop":                    {"three slashes"},
		"kube://user:hunter2@host/shop":  {"three slashes"},
		"kube:///a/b":                    {"kube:///namespace"},
		"kube:///Shop":                   {"kube:///namespace"},
		"kube:///shop#x":                 {"kube:///namespace"},
		"kube:///shop?ttl=5s":            {`unknown parameter "ttl"`, "prefix"},
		"kube:///shop?timeout=never":     {"timeout"},
		"kube:///shop?kubeconfig=/a/b/c": {"/a/b/c"},
		"etcd:///shop":                   {"kube:///namespace"},
	} {
		locktest.OpenFails(t, Open, raw, true, words...)
	}
	expect.Equal(t, open(t, "kube:///"+config).store().namespace, "shop", "the context's namespace")
	name := open(t, "kube:///other"+config+"&prefix=a/").Caps().Name
	if !strings.HasPrefix(name, "kube://127.0.0.1:") || !strings.HasSuffix(name, "/other/a/") {
		t.Error(name)
	}
}

// A kubeconfig that can't be used says what would be right, and shows no secret.
func TestKubeconfigs(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	for _, c := range []struct {
		user  map[string]any
		words []string
	}{
		{map[string]any{"exec": map[string]any{"command": "aws"}}, []string{`user "u" has exec`, "kubectl create token", "tokenFile", "client certificate"}},
		{map[string]any{"auth-provider": map[string]any{"name": "oidc"}}, []string{"auth-provider", "kubectl create token"}},
		{map[string]any{"token": f.token, "as": "root"}, []string{"has as"}},
		{map[string]any{"tokenFile": "/a/b/c"}, []string{"/a/b/c"}},
		{map[string]any{"tokenFile": writeFile(t, "token", " \n")}, []string{"is empty"}},
		{map[string]any{"client-certificate-data": "?"}, []string{"client-certificate-data", "base64"}},
		{map[string]any{"client-certificate-data": base64.StdEncoding.EncodeToString([]byte("x"))}, []string{"client-certificate", "PEM"}},
		{map[string]any{"client-certificate": "none.pem", "client-key": "none.pem"}, []string{"client-certificate", "none.pem"}},
		{map[string]any{"token": "s3cret"}, []string{"401", "login"}},
		{map[string]any{}, []string{"401"}},
	} {
		locktest.OpenFails(t, Open, "kube:///shop?kubeconfig="+url.QueryEscape(f.kubeconfig(c.user)), true, c.words...)
	}
	for text, word := range map[string]string{
		"users: [{user: {token: {hunter2: 1}}}]": "want a kubeconfig",
		"{":                                      "want a kubeconfig",
		"current-context: there":                 `"there"`,
		"current-context: c\ncontexts: [{name: c}]":                                                                                    "https://host:6443",
		"contexts: [{context: {cluster: k}}]\nclusters: [{name: k, cluster: {server: host}}]":                                          "https://host:6443",
		"contexts: [{context: {cluster: k}}]\nclusters: [{name: k, cluster: {server: 'https://h', certificate-authority-data: aGk=}}]": "certificate-authority",
	} {
		locktest.OpenFails(t, Open, "kube:///?kubeconfig="+url.QueryEscape(writeFile(t, "config", text)), true, word)
	}
}

// Paths are relative to the kubeconfig.
func TestRelativePaths(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	file := f.kubeconfig(map[string]any{"tokenFile": "token", "exec": nil}) // of a template that leaves exec out
	must.OK(t, os.WriteFile(filepath.Join(filepath.Dir(file), "token"), []byte(f.token+"\n"), 0o600))
	open(t, "kube:///shop?kubeconfig="+url.QueryEscape(file))
}

// Without a kubeconfig, a pod has its service account. Its token and its authority are read again.
func TestServiceAccount(t *testing.T) {
	f := newFake(t)
	home := t.TempDir()
	before := account
	account = home
	defer func() { account = before }()
	server := must.Get(url.Parse(f.URL))(t)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", home)
	t.Setenv("KUBERNETES_SERVICE_HOST", server.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", server.Port())
	locktest.OpenFails(t, Open, "kube:///", true, "KUBECONFIG", "service account", filepath.Join(home, ".kube", "config"))
	put := func(name, text string) { must.OK(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o600)) }
	put("token", f.token)
	put("namespace", "shop")
	ca := must.Get(os.ReadFile(caFile(t, f)))(t)
	put("ca.crt", string(ca))
	b := open(t, "kube:///")
	r := request("controller")
	locktest.Acquire(t, b, r)

	f.mu.Lock()
	f.token = "hunter2, rotated"
	f.mu.Unlock()
	err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
	locktest.Fails(t, "with the token that has ended", err, false, "401", "login")
	put("token", f.token)
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "with the new token")
	put("token", "")
	err = b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
	expect.Be(t, err, driver.ErrUnsent, "while the file is being replaced")
	locktest.Says(t, err, "tokenFile", "is empty")
	put("token", f.token)

	other := must.Get(testcert.NewAuthority())(t)
	put("ca.crt", string(other.Cert))
	err = b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
	expect.Be(t, err, driver.ErrUnsent, "with another authority")
	locktest.Says(t, err, "certificate")
	put("ca.crt", string(ca)+string(other.Cert))
	expect.OK(t, b.Release(t.Context(), r.Hold), "with both authorities")
}

func caFile(t testing.TB, f *fakeServer) string {
	t.Helper()
	pair := testcert.Pair{Cert: pemOf(f)}
	return pair.Files(t).Cert
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		_, err := w.Write([]byte(`{"hello":1}`))
		return err == nil
	})
	locktest.OpenFails(t, Open, f.url(), true, "no API server")
	f.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		_, err := w.Write([]byte(`<html>`))
		return err == nil
	})
	locktest.OpenFails(t, Open, f.url(), false, "no JSON")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Be(t, expect.Err(Open(ctx, f.url())), context.Canceled)
	f.Close()
	locktest.OpenFails(t, Open, f.url(), false, "refused")
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	config := writeFile(t, "config", "contexts: [{context: {cluster: k}}]\nclusters: [{name: k, cluster: {server: 'https://"+silent.Addr().String()+"'}}]")
	locktest.OpenFails(t, Open, "kube:///?timeout=200ms&kubeconfig="+url.QueryEscape(config), false, silent.Addr().String(), "no answer within 200ms")
}
