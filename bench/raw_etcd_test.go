package bench

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// openRawEtcd locks by a transaction that puts a key if it is absent, and unlocks by a delete.
func openRawEtcd(addr string, _ time.Duration) (client, error) {
	c, err := newEtcdClient(addr)
	return rawEtcdClient{c}, err
}

type rawEtcdClient struct{ *clientv3.Client }

func (c rawEtcdClient) mutex(name string) mutex { return rawEtcdMutex{c.Client, name} }
func (c rawEtcdClient) close()                  { c.Close() }

type rawEtcdMutex struct {
	etcd *clientv3.Client
	name string
}

func (m rawEtcdMutex) lock(ctx context.Context) error {
	free := clientv3.Compare(clientv3.CreateRevision(m.name), "=", 0)
	for {
		r, err := m.etcd.Txn(ctx).If(free).Then(clientv3.OpPut(m.name, "")).Commit()
		if err != nil || r.Succeeded {
			return err
		}
	}
}

func (m rawEtcdMutex) unlock() error {
	_, err := m.etcd.Delete(context.Background(), m.name)
	return err
}

// newEtcdClient returns a client that logs nothing.
func newEtcdClient(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// openMutex uses etcd's own Mutex with one session for all locks of the process. This is the fastest
// way, and correct only if the process uses each lock once at a time.
func openMutex(addr string, ttl time.Duration) (client, error) {
	c, err := newEtcdClient(addr)
	if err != nil {
		return nil, err
	}
	s, err := newSession(c, ttl)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &mutexClient{c, func() (*concurrency.Session, error) { return s, nil }}, nil
}

// openMutexes uses a session for each goroutine.
func openMutexes(addr string, ttl time.Duration) (client, error) {
	c, err := newEtcdClient(addr)
	if err != nil {
		return nil, err
	}
	return &mutexClient{c, func() (*concurrency.Session, error) { return newSession(c, ttl) }}, nil
}

func newSession(c *clientv3.Client, ttl time.Duration) (*concurrency.Session, error) {
	return concurrency.NewSession(c, concurrency.WithTTL(int(ttl.Seconds())))
}

type mutexClient struct {
	etcd    *clientv3.Client
	session func() (*concurrency.Session, error)
}

func (c *mutexClient) mutex(name string) mutex {
	s, err := c.session()
	if err != nil {
		return failing{err}
	}
	return etcdMutex{concurrency.NewMutex(s, name)}
}

func (c *mutexClient) close() { c.etcd.Close() }

type etcdMutex struct{ *concurrency.Mutex }

func (m etcdMutex) lock(ctx context.Context) error { return m.Lock(ctx) }
func (m etcdMutex) unlock() error                  { return m.Unlock(context.Background()) }
func (m etcdMutex) fence() uint64                  { return uint64(m.Header().Revision) }

// failing is a mutex that could not be created.
type failing struct{ err error }

func (f failing) lock(context.Context) error { return f.err }
func (f failing) unlock() error              { return f.err }
