package etcd

import (
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/peers"
)

// peer is one of etcd's own kinds of locks.
type peer struct {
	name string
	open func(t *testing.T, d *deployment) peers.Side
	slow bool // a process for each lock
}

var libraries = []peer{
	{name: "concurrency.Mutex", open: newMutex},
	{name: "v3lock", open: newV3lock},
	{name: "etcdctl", open: newEtcdctl(false), slow: true},
	{name: "etcdctl of the current release", open: newEtcdctl(true), slow: true},
}

// lease is how long locks of both sides live without renewal, in tests in which nobody
// dies.
const lease = 30 * time.Second
