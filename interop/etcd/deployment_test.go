package etcd

import (
	"crypto/rand"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/peers"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		untilKilled(url, os.Getenv(nameEnv))
	}
	// The tests wait most of their time, also for the peers, who take 100 ms to wake up.
	flag.Set("test.parallel", "16")
	os.Exit(testserver.Run(m))
}

// prefix is what etcd's own put before a name: their users write it out, distlock has it
// in its URL.
const prefix = "app/locks/"

// deployment is a server of one release.
type deployment struct {
	*testserver.EtcdServer
	current bool
}

// releases are started once for all tests.
var releases = map[string]func(t *testing.T) *deployment{
	"installed": func(t *testing.T) *deployment { return &deployment{testserver.SharedEtcd(t), false} },
	"current":   func(t *testing.T) *deployment { return &deployment{testserver.SharedCurrentEtcd(t), true} },
}

// eachRelease runs a test beside others.
func eachRelease(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Parallel()
	eachReleaseAlone(t, test)
}

// eachReleaseAlone runs a test beside itself only.
func eachReleaseAlone(t *testing.T, test func(t *testing.T, d *deployment)) {
	for name, start := range releases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// eachPeer runs a test with each peer on each release, beside others.
func eachPeer(t *testing.T, test func(t *testing.T, d *deployment, p peer)) {
	t.Parallel()
	eachPeerAlone(t, test)
}

// eachPeerAlone does so beside itself only.
func eachPeerAlone(t *testing.T, test func(t *testing.T, d *deployment, p peer)) {
	eachReleaseAlone(t, func(t *testing.T, d *deployment) {
		for _, p := range libraries {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				test(t, d, p)
			})
		}
	})
}

func newName() string { return "test-" + rand.Text() }

// client is a connection of etcd's own client, which logs nothing.
func (d *deployment) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{d.Addr()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// line are the keys of those who hold a lock or wait for it, in their order.
func line(t *testing.T, c *clientv3.Client, name string) []string {
	t.Helper()
	r, err := c.Get(t.Context(), prefix+name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range r.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// inLine waits until so many hold the lock or wait for it, and returns their keys.
func inLine(t *testing.T, c *clientv3.Client, name string, n int) []string {
	t.Helper()
	var keys []string
	peers.Eventually(t, "the line has not the length that it should have", func() bool {
		keys = line(t, c, name)
		return len(keys) == n
	})
	return keys
}
