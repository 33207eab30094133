package etcdlock

import (
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/oddnames"
	"github.com/distlock/distlock/internal/testkit/testserver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestOddNames(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t, testserver.EtcdOptions{})
	c := newClient(t, srv.Addr())
	written := c.Watch(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithCreatedNotify())
	<-written
	oddnames.Try(t, mustOpen(t, srv.URL()+"/app"), func() (foreign []string) {
		must.Get(c.Put(t.Context(), "the end", ""))(t)
		for resp := range written {
			for _, e := range resp.Events {
				if key := string(e.Kv.Key); key == "the end" {
					return foreign
				} else if !strings.HasPrefix(key, "app/") {
					foreign = append(foreign, key)
				}
			}
		}
		t.Error("the watch has ended")
		return foreign
	})
}
