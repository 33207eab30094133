package bench

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
