package etcdlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
)

// With the user's own client the same is learnt, and the client outlives the backend.
func TestNew(t *testing.T) {
	addr := testserver.SharedEtcd(t).Addr()
	c := newClient(t, addr)
	b, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Caps(); got.MinTTL != time.Second || got.Name != "etcd://"+addr+"/" {
		t.Errorf("%+v", got)
	}
	acquire(t, b, request("", driver.Exclusive))
	b.Close()
	if _, err := c.Get(t.Context(), "k"); err != nil {
		t.Errorf("the user's client after Close: %v", err)
	}
}

func TestNewWithClientsThatAreNotServed(t *testing.T) {
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
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + dead}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	_, err = New(c, nil)
	if !errors.Is(err, context.DeadlineExceeded) || driver.Final(err) || !strings.Contains(err.Error(), dead) || time.Since(start) > time.Minute {
		t.Errorf("nobody listens: %v after %v", err, time.Since(start))
	}
	time.AfterFunc(50*time.Millisecond, func() { life.Close() })
	if _, err := New(life, nil); err == nil || driver.Final(err) {
		t.Errorf("a client that is closed meanwhile: %v", err)
	}

	srv := testserver.Etcd(t, testserver.EtcdOptions{Password: "s3cret"})
	if _, err := New(newClient(t, srv.Addr()), nil); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "user") {
		t.Errorf("a server that wants a login: %v", err)
	}
}
