package bench

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

var openToAll = zk.WorldACL(zk.PermAll)

// newZooKeeperClient returns a client that logs nothing.
func newZooKeeperClient(addr string, timeout time.Duration) (*zk.Conn, error) {
	c, _, err := zk.Connect([]string{addr}, timeout, zk.WithLogger(silent{}), zk.WithEventCallback(func(zk.Event) {}))
	return c, err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// createOnce creates a permanent node, unless it exists.
func createOnce(c *zk.Conn, path string) error {
	_, err := c.Create(path, nil, 0, openToAll)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// openZkLock uses go-zookeeper's Lock, with one session for all locks of the process. It supports no
// context: a waiter waits until it has the lock.
func openZkLock(addr string, ttl time.Duration) (client, error) {
	c, err := newZooKeeperClient(addr, ttl)
	return zkClient{c, func(name string) mutex { return zkLock{zk.NewLock(c, "/bench-locks/"+name, openToAll)} }}, err
}

// openRawZooKeeper creates and deletes ephemeral nodes. A refused client retries at once.
func openRawZooKeeper(addr string, ttl time.Duration) (client, error) {
	c, err := newZooKeeperClient(addr, ttl)
	if err != nil {
		return nil, err
	}
	return zkClient{c, func(name string) mutex { return rawZkMutex{c, "/bench-raw/" + name} }}, createOnce(c, "/bench-raw")
}

type zkClient struct {
	*zk.Conn
	newMutex func(name string) mutex
}

func (c zkClient) mutex(name string) mutex { return c.newMutex(name) }
func (c zkClient) close()                  { c.Close() }

type zkLock struct{ *zk.Lock }

func (l zkLock) lock(context.Context) error { return l.Lock.Lock() }
func (l zkLock) unlock() error              { return l.Unlock() }

type rawZkMutex struct {
	zk   *zk.Conn
	path string
}

func (m rawZkMutex) lock(ctx context.Context) error {
	for ctx.Err() == nil {
		_, err := m.zk.Create(m.path, nil, zk.FlagEphemeral, openToAll)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return ctx.Err()
}

func (m rawZkMutex) unlock() error { return m.zk.Delete(m.path, -1) }
