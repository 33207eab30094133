package redislock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

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
		"redis://a,b":                               "redis+cluster://",
		"redis+sentinel://a,b":                      "name of the master",
		"redis+sentinel://a/main/x":                 "not a number",
		"redis+sentinel://a/main?sentinel_tls=true": "sentinel_tls",
		"redis+cluster://a,b/1":                     "no database but 0",
		"redis+cluster://a?ca=/x":                   "ca",
		"rediss+cluster://a?ca=/none":               "PEM",
		"rediss://a?cert=/none":                     "certificate and its key",
		"rediss+sentinel://:s3cret@a/main?key=/no":  "certificate and its key",
		"redis+cluster://a?prefix={":                "braces",
		"redis+cluster://a?prefix=a}":               "braces",
		"redis+cluster://a?pubsub=loud":             "pubsub",
		"redis:a:6379":                              "two slashes",
		"redis+cluster:a,b":                         "two slashes",
		"redis://a:0":                               "from 1 to 65535",
		"redis+sentinel://a,b:65536/main":           "b:65536",
		"redis://a?cert=/x":                         "rediss",
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
	if _, err := os.Stat(ca); err != nil {
		t.Fatal(err)
	}
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
		u, err := driver.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		to, err := parseURL(u)
		if err != nil || to.name() != want {
			t.Errorf("%s: %s, %v; want %s", url, to.name(), err, want)
		}
	}
}
