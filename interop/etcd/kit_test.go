// Package etcd tests that distlock shares locks with etcd's own: concurrency.Mutex of its client,
// etcdctl lock and the v3lock service, on Debian's release of etcd and on the current one. It reproduces
// their bugs beside distlock, which doesn't have them.
//
// The go.mod of interop names the current release, which the tests of all modules use.
package etcd

import (
	"crypto/rand"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/etcdlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/interop"
	"github.com/distlock/distlock/interop/peers"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) {
	interop.RunChild(hold)
	// The tests mostly wait.
	flag.Set("test.parallel", "16")
	os.Exit(testserver.Run(m))
}

// prefix precedes the names of etcd's own clients. distlock has it in its URL.
const prefix = "app/locks/"

// deployment is a server of one release.
type deployment struct {
	*testserver.EtcdServer
	current bool
}

// releases has the deployments, which all tests share.
var releases = map[string]func(t *testing.T) *deployment{
	"installed": func(t *testing.T) *deployment { return &deployment{testserver.SharedEtcd(t), false} },
	"current":   func(t *testing.T) *deployment { return &deployment{testserver.SharedCurrentEtcd(t), true} },
}

// eachRelease runs a test in parallel with others.
func eachRelease(t *testing.T, test func(t *testing.T, d *deployment)) {
	t.Parallel()
	eachReleaseAlone(t, test)
}

// eachReleaseAlone runs a test in parallel with itself only.
func eachReleaseAlone(t *testing.T, test func(t *testing.T, d *deployment)) {
	for name, start := range releases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// eachPeer runs a test with each kind of peer on each release, in parallel with others.
func eachPeer(t *testing.T, test func(t *testing.T, d *deployment, p peerKind)) {
	t.Parallel()
	eachPeerAlone(t, test)
}

// eachPeerAlone does so in parallel with itself only.
func eachPeerAlone(t *testing.T, test func(t *testing.T, d *deployment, p peerKind)) {
	eachReleaseAlone(t, func(t *testing.T, d *deployment) {
		for _, p := range peerKinds {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				test(t, d, p)
			})
		}
	})
}

func newName() string { return "test-" + rand.Text() }

// client connects etcd's own client.
func (d *deployment) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{d.Addr()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// lockKeys returns the keys of a lock's holders and waiters, in order.
func lockKeys(t *testing.T, c *clientv3.Client, name string) []string {
	t.Helper()
	r := must.Get(c.Get(t.Context(), prefix+name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))(t)
	var keys []string
	for _, kv := range r.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// awaitKeys waits until a lock has n keys, and returns them.
func awaitKeys(t *testing.T, c *clientv3.Client, name string, n int) []string {
	t.Helper()
	var keys []string
	peers.Eventually(t, "the queue does not reach the expected length", func() bool {
		keys = lockKeys(t, c, name)
		return len(keys) == n
	})
	return keys
}

// url is distlock's URL for locks that the peers name with prefix.
func (d *deployment) url() string { return d.URL() + "/" + prefix }

// distlock makes a client with a connection of its own.
func (d *deployment) distlock(t *testing.T, opts *distlock.Options) peers.Distlock {
	t.Helper()
	b := must.Get(driver.Open(t.Context(), d.url()))(t)
	return peers.NewDistlock(t, b, opts)
}

// distlockOn makes a client on a shared connection.
func distlockOn(t *testing.T, c *clientv3.Client) peers.Distlock {
	t.Helper()
	b := must.Get(etcdlock.New(c, &etcdlock.Options{Prefix: prefix}))(t)
	return peers.NewDistlock(t, b, nil)
}

// peerKind is one of etcd's own kinds of lock.
type peerKind struct {
	name string
	open func(t *testing.T, d *deployment) peers.Peer
	slow bool // a process for each lock
}

var peerKinds = []peerKind{
	{name: "concurrency.Mutex", open: newMutex},
	{name: "v3lock", open: newV3lock},
	{name: "etcdctl", open: newEtcdctl(false), slow: true},
	{name: "etcdctl of the current release", open: newEtcdctl(true), slow: true},
}

// leaseTTL is the TTL of locks in tests without crashes.
const leaseTTL = 30 * time.Second
