package etcdlock

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// openFails checks that Open fails, with all the words in the error and without the password.
func openFails(t *testing.T, what, url string, final bool, words ...string) {
	t.Helper()
	if !strings.Contains(url, "timeout=") {
		url = patiently(url)
	}
	b, err := Open(t.Context(), url)
	if err == nil {
		b.Close()
		t.Errorf("%s: opened", what)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v: want %q", what, err, w)
		}
	}
	if driver.Final(err) != final || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: %v; final: %v", what, err, driver.Final(err))
	}
}

// openFailsInTime is openFails where Open goes on until its timeout, which is longer on a machine that is too busy for an answer.
func openFailsInTime(t *testing.T, what, url string, words ...string) {
	t.Helper()
	for timeout := 3 * time.Second; ; timeout *= 5 {
		b, err := Open(t.Context(), url+"?timeout="+timeout.String())
		if err == nil {
			b.Close()
		}
		said := err != nil && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) })
		if said || timeout > time.Minute {
			locktest.Fails(t, what, err, false, append(words, "no answer within ")...)
			return
		}
	}
}

func TestOpenBadURLs(t *testing.T) {
	for _, u := range []string{
		"http://localhost", "s3cret", "etcd:localhost:2379", "etcd://h:0", "etcd://h:99999", "etcd://a,,b", "etcd://a,b:port", "etcd://:s3cret@local host",
		"etcd://h?nonsense=1", "etcd://h?timeout=-1s", "etcd://h?timeout=1s&timeout=2s", "etcd://ann@h", "etcd://:s3cret@h", "etcd://h?ca=x.pem", "etcd://h?servername=x",
		"etcds://h?ca=/none.pem", "etcds://h?cert=/none.pem", "etcd://ann:s3cret@h/?s3cret",
	} {
		openFails(t, u, u, true)
	}
}

func TestURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"etcd://":                                "etcd://localhost:2379/",
		"etcd://h":                               "etcd://h:2379/",
		"etcd://b:1,a/locks":                     "etcd://a:2379,b:1/locks/",
		"etcds://ann:s3cret@h:1/locks/?key=&ca=": "etcd://h:1/locks/",
		"etcd://[::1]/a/b%20c/":                  "etcd://[::1]:2379/a/b c/",
		"etcd://h//locks":                        "etcd://h:2379//locks/",
	} {
		u := must.Get(driver.ParseURL(raw))(t)
		if to, err := parseURL(u); err != nil || to.opts.Name != want {
			t.Errorf("%s: %+v, %v: want the name %s", raw, to, err, want)
		}
	}
}

// serveText starts a server that accepts connections and sends a text, perhaps empty.
func serveText(t *testing.T, says string) string {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			c.Write([]byte(says))
		}
	}()
	return l.Addr().String()
}

func TestOpenUnreachable(t *testing.T) {
	t.Parallel()
	one, other := testserver.DeadAddr(t), testserver.DeadAddr(t)
	for _, login := range []string{"", "ann:s3cret@"} {
		start := time.Now()
		openFails(t, "no server", "etcd://"+login+one+","+other+"?timeout=10m", false, one, other, "connection refused")
		openFails(t, "no such host", "etcd://"+login+"no-such-host.invalid?timeout=10m", false, "no-such-host.invalid:2379", "no such host")
		if took := time.Since(start); took > testTimeout {
			t.Errorf("it took %v to find no server", took)
		}
	}
	silent := serveText(t, "")
	openFails(t, "silence", "etcd://ann:s3cret@"+silent+","+one+"?timeout=300ms", false, silent+": no answer", one+": ", "within 300ms")
	openFails(t, "silence instead of TLS", "etcds://"+silent+"?timeout=300ms", false, silent+": no answer")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Open(ctx, "etcd://ann:s3cret@"+silent+"?timeout=10m")
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "within") || time.Since(start) > time.Minute {
		t.Errorf("context ended: %v after %v", err, time.Since(start))
	}
}

func TestOpenOtherProtocols(t *testing.T) {
	for _, says := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "-ERR unknown command\r\n", strings.Repeat("x", 100_000)} {
		openFails(t, says[:4], "etcd://"+serveText(t, says), false, "no etcd server")
	}
	plain := httptest.NewServer(nil)
	defer plain.Close()
	openFails(t, "a web server", "etcd://"+plain.Listener.Addr().String(), false)
	empty := grpc.NewServer()
	openFails(t, "another gRPC server", "etcd://"+serve(t, empty), false, "no etcd server")
}

// serve runs a gRPC server.
func serve(t *testing.T, s *grpc.Server) string {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// versionServer is a server that only reports a version.
type versionServer struct {
	etcdserverpb.UnimplementedMaintenanceServer
	version string
	leader  uint64
}

func (a *versionServer) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Version: a.version, Leader: a.leader}, nil
}

func TestOpenServerVersions(t *testing.T) {
	for version, old := range map[string]bool{"3.2.32": true, "2.3.8": true, "3.3.27": true, "3.4.0": false, "3.10.1": false, "4.0.0": false, "unheard-of": false} {
		s := grpc.NewServer()
		etcdserverpb.RegisterMaintenanceServer(s, &versionServer{version: version, leader: 1})
		u := "etcd://" + serve(t, s)
		if old {
			openFails(t, version, u, true, version, "want 3.4")
			continue
		}
		// It has no other service.
		openFails(t, version, u, false, "unknown service")
	}
}

func TestOpenWithTLS(t *testing.T) {
	secure, plain := testserver.Etcd(t, testserver.EtcdOptions{TLS: true}), testserver.SharedEtcd(t)
	b := mustOpen(t, secure.URL())
	expect.Equal(t, b.Caps().Name, "etcd://"+secure.Addr()+"/", "name")
	mustOpen(t, secure.URL()+"&servername=localhost")
	cert, key := secure.Files()
	query := "?" + url.Values{"ca": {cert}, "cert": {cert}, "key": {key}}.Encode()
	openFails(t, "no TLS where it is wanted", "etcd://"+secure.Addr(), false, "etcds://")
	openFails(t, "TLS where there is none", "etcds://"+plain.Addr()+query, false, "does the server speak TLS?")
	openFails(t, "no certificate", "etcds://"+secure.Addr()+"?ca="+cert, false, "cert and key")
	openFails(t, "a certificate of an unknown authority", "etcds://"+secure.Addr(), false, "unknown authority")
	openFails(t, "a certificate for another name", secure.URL()+"&servername=example.org", false, "example.org")
}

func TestOpenUsersAndPasswords(t *testing.T) {
	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	at := func(user, password string) string {
		return (&url.URL{Scheme: "etcd", Host: srv.Addr(), User: url.UserPassword(user, password), Path: "/locks"}).String()
	}
	openFails(t, "no login", "etcd://"+srv.Addr(), true, "wants a user and a password")
	openFails(t, "a wrong password", at("root", "wr0ng"), true, "wrong user or password")
	openFails(t, "a wrong user", at("who", "s3cret"), true, "wrong user or password")
	mustOpen(t, srv.URL())
	srv.AddUser("p@ss/word", "p@ss/s3cret", testserver.EtcdGrant{Prefix: "locks/a", Read: true, Write: true})
	mustOpen(t, at("p@ss/word", "p@ss/s3cret"))
	// A password without authentication is ignored.
	mustOpen(t, strings.Replace(at("root", "s3cret"), srv.Addr(), testserver.SharedEtcd(t).Addr(), 1))
}

func TestOpenWithoutLeader(t *testing.T) {
	t.Parallel()
	s := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(s, &versionServer{version: "3.5.0"})
	at := serve(t, s)
	openFailsInTime(t, "a member that is alone", "etcd://"+at, at+": it has no leader")
}

func TestLongOpenWithoutLeader(t *testing.T) {
	g := testserver.EtcdCluster(t, testserver.EtcdOptions{})
	left := g.Followers()[0]
	var others []*testserver.EtcdServer
	for _, s := range g.Members() {
		if s != left {
			s.Kill()
			others = append(others, s)
		}
	}
	eventually(t, "the member knows that it is alone", func() bool { return alone(t, left) })
	openFailsInTime(t, "one of three", g.URL(), left.Addr()+": it has no leader", others[0].Addr()+": connect")

	// Open waits for a majority.
	opened := make(chan error)
	go func() {
		b, err := Open(t.Context(), "etcd://"+left.Addr()+"?timeout=2m")
		if err == nil {
			b.Close()
		}
		opened <- err
	}()
	others[0].Start()
	expect.OK(t, <-opened)
}

func TestOpenReadsTheShortestTTL(t *testing.T) {
	slow := testserver.Etcd(t, testserver.EtcdOptions{Args: []string{"--heartbeat-interval", "100", "--election-timeout", "2000"}})
	for want, srv := range map[time.Duration]*testserver.EtcdServer{time.Second: testserver.SharedEtcd(t), 3 * time.Second: slow} {
		expect.Equal(t, mustOpen(t, srv.URL()).Caps().MinTTL, want, srv.Addr(), "shortest TTL")
	}
}

// New reads the shortest TTL too, and leaves the client open.
func TestNew(t *testing.T) {
	addr := testserver.SharedEtcd(t).Addr()
	c := newClient(t, addr)
	b := must.Get(newPatiently(t, c, nil))(t)
	if got := b.Caps(); got.MinTTL != time.Second || got.Name != "etcd://"+addr+"/" {
		t.Errorf("%+v", got)
	}
	acquire(t, b, request("", driver.Exclusive))
	b.Close()
	expect.OK(t, expect.Err(c.Get(t.Context(), "k")), "the user's client after Close")
}

func TestNewWithUnusableClients(t *testing.T) {
	addr := testserver.SharedEtcd(t).Addr()
	closed, kv, watcher, lease := newClient(t, addr), newClient(t, addr), newClient(t, addr), newClient(t, addr)
	closed.Close()
	kv.KV = namespace.NewKV(kv.KV, "ours/")
	watcher.Watcher = namespace.NewWatcher(watcher.Watcher, "ours/")
	lease.Lease = namespace.NewLease(lease.Lease, "ours/")
	for word, c := range map[string]*clientv3.Client{
		"nil": nil, "closed": closed, "no connection": clientv3.NewCtxClient(t.Context()),
		"KV": kv, "Watcher": watcher, "Lease": lease,
	} {
		if _, err := New(c, nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestNewWithoutServer(t *testing.T) {
	t.Parallel()
	dead, life := testserver.DeadAddr(t), newClient(t, testserver.DeadAddr(t))
	c := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{"http://" + dead}, Logger: zap.NewNop()}))(t)
	defer c.Close()
	start := time.Now()
	_, err := New(c, nil)
	if !errors.Is(err, context.DeadlineExceeded) || driver.Final(err) || !strings.Contains(err.Error(), dead) || time.Since(start) > time.Minute {
		t.Errorf("no server: %v after %v", err, time.Since(start))
	}
	time.AfterFunc(50*time.Millisecond, func() { life.Close() })
	if _, err := New(life, nil); err == nil || driver.Final(err) {
		t.Errorf("a client that is closed meanwhile: %v", err)
	}

	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	_, err = newPatiently(t, newClient(t, srv.Addr()), nil)
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "user") {
		t.Errorf("a server that wants a login: %v", err)
	}
}
