package redislock

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

func TestOpenBadURLs(t *testing.T) {
	for _, u := range []string{
		"redis://localhost/zero", "redis://localhost/-1", "redis://localhost?layout=java", "redis://localhost?db=1",
		"redis://localhost?nonsense=1", "redis://localhost?timeout=-1s", "redis+unix://host/sock", "redis+unix:",
		"redis+unix:///sock?db=x", "http://localhost", "redis://:s3cret@local host", "s3cret",
	} {
		_, err := Open(t.Context(), u)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestOpenUsersAndPasswords(t *testing.T) {
	acl := testserver.File(t, "users.acl", strings.Join([]string{
		"user default on >s3cret ~* &* +@all",
		"user locker on >p@ss/word ~locks:* ~distlock_line:* ~distlock_places:* &distlock_free:* -@all +eval +evalsha +set +get +del +exists +pttl +pexpire +xadd +time +publish +subscribe +ping",
		"user deaf on >x ~* -@all +@all -subscribe &*",
		"user nobody on >x ~* &* -@all +hello +ping",
		"",
	}, "\n"))
	srv := testserver.Redis(t, "--aclfile", acl)
	at := func(user, password string) string {
		u := url.URL{Scheme: "redis", Host: srv.Addr(), User: url.UserPassword(user, password), RawQuery: "prefix=locks:"}
		return u.String()
	}
	for _, u := range []string{srv.URL(), at("", "wr0ng"), at("locker", "wr0ng"), at("who", "s3cret")} {
		_, err := Open(t.Context(), u)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range []string{at("", "s3cret"), at("locker", "p@ss/word")} {
		b, err := Open(t.Context(), u)
		b = opened(t, b, err)
		r := request("", driver.Exclusive)
		w := armWatch(t, b, r)
		acquire(t, b, r)
		release(t, b, r)
		signalled(t, w)
		w.Close()
	}

	b, err := Open(t.Context(), at("deaf", "x"))
	b = opened(t, b, err)
	if _, err := b.Watch(t.Context(), request("", driver.Exclusive)); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("watch without SUBSCRIBE: %v, want ErrSkip", err)
	}
	b, err = Open(t.Context(), at("nobody", "x"))
	b = opened(t, b, err)
	refused(t, b, request("", driver.Exclusive), driver.ErrInvalid)

	// The client libraries say the same.
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: "wr0ng"})
	t.Cleanup(func() { c.Close() })
	own, err := NewGoRedis(c, nil)
	own = opened(t, own, err)
	refused(t, own, request("", driver.Exclusive), driver.ErrInvalid)
}

// Open works for a user that may not run HELLO, which reports the version.
func TestOpenWithoutLeaveToAskTheVersion(t *testing.T) {
	acl := testserver.File(t, "users.acl", "user default on nopass ~* &* +@all -hello\n")
	srv := testserver.Redis(t, "--aclfile", acl)
	b, err := Open(t.Context(), srv.URL())
	b = opened(t, b, err)
	acquire(t, b, request("", driver.Exclusive))
}

func TestOpenUnreachable(t *testing.T) {
	dead := testserver.DeadAddr(t)
	_, err := Open(t.Context(), "redis://:s3cret@"+dead)
	unknown(t, "no listener", err)
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), dead) {
		t.Errorf("no listener: %v", err)
	}

	// A server listens and says nothing.
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, err = Open(t.Context(), "redis://:s3cret@"+l.Addr().String()+"?timeout=50ms")
	unknown(t, "timeout", err)
	if !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("timeout: %v", err)
	}
	if _, err = Open(t.Context(), "rediss://"+l.Addr().String()+"?timeout=50ms"); !strings.Contains(err.Error(), "TLS") {
		t.Errorf("a server without TLS: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Open(ctx, "redis://"+l.Addr().String()+"?timeout=1h")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("context ended: %v", err)
	}
}

// fakeServer answers every command with the same words.
func fakeServer(t *testing.T, answer string) string {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					var words int
					if n, _ := fmt.Sscanf(line, "*%d", &words); n == 1 {
						for range 2 * words {
							r.ReadString('\n')
						}
						c.Write([]byte(answer))
					}
				}
			}()
		}
	}()
	return "redis://" + l.Addr().String()
}

func TestOpenServersOfAnAge(t *testing.T) {
	hello := func(server, version string) string {
		return fmt.Sprintf("*4\r\n$6\r\nserver\r\n$%d\r\n%s\r\n$7\r\nversion\r\n$%d\r\n%s\r\n", len(server), server, len(version), version)
	}
	for _, c := range []struct {
		answer string
		want   error
	}{
		{hello("redis", "6.2.0"), nil},
		{hello("redis", "6.0.20"), driver.ErrInvalid},
		{hello("redis", "10.2.0"), nil},
		{hello("valkey", "8.1.0"), nil},
		{hello("redis", "5.0.14"), driver.ErrInvalid},
		{"-ERR unknown command `HELLO`, with args beginning with: \r\n", driver.ErrInvalid},
		{"-ERR wrong number of arguments for 'auth' command\r\n", driver.ErrInvalid},
	} {
		b, err := Open(t.Context(), fakeServer(t, c.answer))
		if !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.answer, err, c.want)
		}
		if err == nil {
			b.Close()
		}
	}
}

// A server that does not speak the protocol is an error, and nothing worse.
func TestOpenOtherProtocols(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 400 Bad Request\r\n", "\r\n", "+\r\n\n", "$x\r\n", "$99999999999999\r\n", "*3\r\n:1\r\n?\r\n", "%7\r\n",
		strings.Repeat("x", 100_000),
	} {
		_, err := Open(t.Context(), fakeServer(t, answer)+"?timeout=100ms")
		if answer == "+\r\n\n" || answer == "\r\n" {
			continue // an empty word is an answer, and no version
		}
		unknown(t, fmt.Sprintf("%.20q", answer), err)
	}
}

func TestOpenSocketAndDatabase(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	srv := testserver.Redis(t, "--unixsocket", sock)
	b, err := Open(t.Context(), "redis+unix://"+sock+"?db=3")
	b = opened(t, b, err)
	if want := "redis+unix://" + sock + "/3"; b.Caps().Name != want {
		t.Errorf("name %q, want %q", b.Caps().Name, want)
	}
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	w := armWatch(t, b, r)
	defer w.Close()

	same, err := Open(t.Context(), srv.URL()+"/3")
	same = opened(t, same, err)
	refused(t, same, request(r.Name, driver.Exclusive), driver.ErrHeld)
	other := openOwn(t, srv.Addr(), Options{})
	acquire(t, other, request(r.Name, driver.Exclusive))
	release(t, b, r)
	signalled(t, w)
}

func TestNames(t *testing.T) {
	srv := testserver.SharedRedis(t)
	want := "redis://" + srv.Addr() + "/0"
	for _, o := range openers {
		got := o.open(t, srv.Addr(), Options{}).Caps().Name
		if got != want {
			t.Errorf("%s: name %q, want %q", o.name, got, want)
		}
		if o.name == "url" {
			continue
		}
		if got := o.open(t, srv.Addr(), Options{Name: "db1"}).Caps().Name; got != "db1" {
			t.Errorf("%s: name %q, want db1", o.name, got)
		}
		if got := o.open(t, srv.Addr(), Options{Layout: Redisson, Prefix: "p:"}).Caps().Name; got != want+"?layout=redisson&prefix=p:" {
			t.Errorf("%s: name %q, want one with the layout and the prefix", o.name, got)
		}
	}
}

func TestClientsThatAreNotServed(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	sentinels := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer sentinels.Close()
	both := redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer both.Close()
	for words, c := range map[string]redis.UniversalClient{"Ring": ring, "redis+sentinel://": sentinels, "want Open with redis+sentinel://": both} {
		if _, err := NewGoRedis(c, nil); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), words) {
			t.Errorf("%T: %v; want ErrUnsupported with %q", c, err, words)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer c.Close()
	if _, err := NewGoRedis(c, &Options{Layout: "java"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a layout that is none: %v", err)
	}
}

// refusedURL wants a URL to be refused for good, with these words and no password.
func refusedURL(t *testing.T, url, words string) {
	t.Helper()
	_, err := Open(t.Context(), url)
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: %v; want ErrInvalid with %q", driver.Redact(url), err, words)
	}
}

func TestOpenBadDeployments(t *testing.T) {
	for url, words := range map[string]string{
		"redis://a,b":                                          "redis+cluster://",
		"redis+sentinel://a,b":                                 "name of the master",
		"redis+sentinel://a/main/x":                            "not a number",
		"redis+sentinel://a/main?sentinel_tls=true":            "sentinel_tls",
		"redis+cluster://a,b/1":                                "no database but 0",
		"redis+cluster://a?ca=/x":                              "ca",
		"rediss+cluster://a?ca=/none":                          "parameter ca",
		"rediss://a?cert=/none":                                "parameter cert",
		"rediss+sentinel://:s3cret@a/main?key=/no":             "parameter key",
		"redis+cluster://a?prefix={":                           "braces",
		"redis+cluster://a?prefix=a}":                          "braces",
		"redis+cluster://a?pubsub=loud":                        "pubsub",
		"redis:a:6379":                                         "two slashes",
		"redis+cluster:a,b":                                    "two slashes",
		"redis://a:0":                                          "from 1 to 65535",
		"redis+sentinel://a,b:65536/main":                      "b:65536",
		"redis://a?cert=/x":                                    "rediss",
		"redis://a?password_file=/none":                        "/none",
		"redis://:s3cret@a?password_file=/none":                "want one of them",
		"redis+sentinel://a/main?sentinel_password_file=/none": "/none",
		"redis+sentinel://a/main?sentinel_password_file=/none&sentinel_password=s3cret": "want one of them",
		"redis://a?sentinel_password_file=/none":                                        "sentinel_password_file",
	} {
		refusedURL(t, url, words)
	}
}

// The server at an address is not of the kind that the URL says.
func TestOpenAnotherKindOfServer(t *testing.T) {
	t.Parallel()
	c, s := testserver.SharedRedisCluster(t), testserver.SharedRedisSentinel(t)
	alone := testserver.SharedRedis(t).Addr()
	refusedURL(t, "redis://"+c.Addrs()[0], "redis+cluster://")
	refusedURL(t, "redis+cluster://"+alone, "not part of a Redis Cluster")
	refusedURL(t, "redis+cluster://"+s.Addrs()[0], "not part of a Redis Cluster")
	refusedURL(t, "redis://"+alone+"/1000000", "no database of this number")
	refusedURL(t, "redis+sentinel://"+alone+"/main", "no sentinel")
	refusedURL(t, "redis://"+s.Addrs()[0], "redis+sentinel://")
	refusedURL(t, "redis://"+s.Followers()[0].Addr(), "replica")
	refusedURL(t, strings.Replace(sentinelURL(s), "/"+testserver.SentinelName, "/nobody", 1), `no master named "nobody"`)

	_, err := Open(t.Context(), "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main")
	unknown(t, "no sentinel", err)
	_, err = Open(t.Context(), "redis+cluster://127.0.0.1:1,127.0.0.1:2")
	unknown(t, "no server of a cluster", err)

	node := redis.NewClient(&redis.Options{Addr: c.Addrs()[0]})
	defer node.Close()
	b, err := NewGoRedis(node, nil)
	b = opened(t, b, err)
	for range 10 { // one of them is in another server's slot
		_, err = b.Acquire(t.Context(), request("", driver.Exclusive))
	}
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "Cluster") {
		t.Errorf("a client of one server of a cluster: %v", err)
	}
}

func TestOpenWithPasswordsAndTLS(t *testing.T) {
	o := testserver.RedisOptions{User: "locker", Password: "s3cret", SentinelPassword: "s3cret2", TLS: true}
	s := testserver.RedisSentinel(t, o)
	ca := filepath.Join(s.Master().Dir(), "cert.pem")
	must.Get(os.Stat(ca))(t)
	sentinel := "@" + strings.Join(s.Addrs(), ",") + "/" + testserver.SentinelName + "?ca=" + ca
	refusedURL(t, "rediss+sentinel://locker:s3cret"+sentinel, "sentinel_password")
	refusedURL(t, "rediss+sentinel://locker:s3cret"+sentinel+"&sentinel_password=s3cretive", "sentinel_password")
	refusedURL(t, "rediss+sentinel://locker:s3cretive"+sentinel+"&sentinel_password=s3cret2", "user or password")
	c := testserver.RedisCluster(t, testserver.RedisOptions{User: "locker", Password: "s3cret", TLS: true})
	cluster := "@" + strings.Join(c.Addrs(), ",") + "?ca=" + filepath.Join(c.Masters()[0].Dir(), "cert.pem")
	refusedURL(t, "rediss+cluster://locker:s3cretive"+cluster, "user or password")
	for _, url := range []string{"rediss+sentinel://locker:s3cret" + sentinel + "&sentinel_password=s3cret2", "rediss+cluster://locker:s3cret" + cluster} {
		b, err := Open(t.Context(), url)
		b = opened(t, b, err)
		if name := b.Caps().Name; strings.Contains(name, "s3cret") || !strings.HasPrefix(name, url[:strings.Index(url, ":")]) {
			t.Errorf("name %s", name)
		}
		r := request("", driver.Exclusive)
		acquire(t, b, r)
		w := armWatch(t, b, request(r.Name, driver.Exclusive))
		release(t, b, r)
		signalled(t, w)
		w.Close()
	}
}

func TestNilClients(t *testing.T) {
	var single *redis.Client
	var cluster *redis.ClusterClient
	for _, c := range []redis.UniversalClient{nil, single, cluster} {
		if _, err := NewGoRedis(c, nil); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%T: %v", c, err)
		}
	}
}

// Names do not depend on the order of hosts.
func TestNamesOfDeployments(t *testing.T) {
	for url, want := range map[string]string{
		"redis+sentinel://b:1,a/main":      "redis+sentinel://a:26379,b:1/main/0",
		"rediss+sentinel://u:p@b,a/main/3": "rediss+sentinel://a:26379,b:26379/main/3",
		"redis+cluster://b,a:7":            "redis+cluster://a:7,b:6379",
	} {
		u := must.Get(driver.ParseURL(url))(t)
		to, err := parseURL(u)
		if err != nil || to.name() != want {
			t.Errorf("%s: %s, %v; want %s", url, to.name(), err, want)
		}
	}
}

// A command that is too large for the buffers of a stalled connection does not keep
// its caller, nor spoil what comes after it.
func TestStalledWrite(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	b := patientOpeners[0].open(t, srv.Addr(), Options{})
	large := strings.Repeat("x", 32<<20)
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.client.Do(ctx, "", []string{"ECHO", large}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a large command: %v", err)
	}
	srv.Resume()
	acquire(t, b, request("", driver.Exclusive))
}

// tlsServer is a TLS entrance to a server.
func tlsServer(t *testing.T, target string) (addr string, roots *x509.CertPool) {
	ts := httptest.NewTLSServer(nil)
	t.Cleanup(ts.Close)
	roots = x509.NewCertPool()
	roots.AddCert(ts.Certificate())
	l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: ts.TLS.Certificates}))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				c.Close()
				continue
			}
			go func() { io.Copy(s, c); s.Close() }()
			go func() { io.Copy(c, s); c.Close() }()
		}
	}()
	return l.Addr().String(), roots
}

func TestTLS(t *testing.T) {
	srv := testserver.Redis(t, "--requirepass", "s3cret")
	addr, roots := tlsServer(t, srv.Addr())
	u := must.Get(url.Parse("rediss://:s3cret@" + addr))(t)
	if _, err := Open(t.Context(), u.String()); err == nil || driver.Final(err) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	to := must.Get(parseURL(u))(t)
	to.certificates = netaddr.StaticCertificates(&tls.Config{RootCAs: roots})
	b, err := newBackend(to.connect(), to.opts, 0)
	b = opened(t, b, err)
	if want := "rediss://" + addr + "/0"; b.Caps().Name != want {
		t.Errorf("name %q, want %q", b.Caps().Name, want)
	}
	r := request("", driver.Exclusive)
	w := armWatch(t, b, r)
	defer w.Close()
	acquire(t, b, r)

	// An abandoned attempt is executed before its release.
	srv.Pause()
	late := request("", driver.Exclusive)
	if err := givenUp(t, b, late, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: %v", err)
	}
	srv.Resume()
	release(t, b, late)
	release(t, b, r)
	signalled(t, w)
}
