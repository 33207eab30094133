package served

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The connections of the suite go to two servers in turn, each through a proxy of its own. Both servers have
// connections of their own to one store.
func TestConformance(t *testing.T) {
	t.Parallel()
	address := testserver.SharedRedis(t).URL()
	direct := open(t, address)
	conform(t, func() driver.Backend { return open(t, address) }, func(name string) bool {
		_, err := direct.(driver.Inspector).Inspect(t.Context(), name)
		return errors.Is(err, driver.ErrInvalid)
	})
}

func TestLongConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		store := memlock.NewStore()
		conform(t, func() driver.Backend { return store.Connect() }, nil)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		file := "sqlite:" + url.PathEscape(filepath.Join(t.TempDir(), "locks.db"))
		conform(t, func() driver.Backend { return open(t, file) }, nil)
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		address := testserver.SharedEtcd(t).URL()
		conform(t, func() driver.Backend { return open(t, address) }, nil)
	})
}

func conform(t *testing.T, connect func() driver.Backend, refuses func(name string) bool) {
	servers := []*process{start(t, connect), start(t, connect)}
	var proxies faultproxy.Networks
	var turn atomic.Int32
	drivertest.Run(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, servers[turn.Add(1)%2].addr)
			b, err := driver.Open(ctx, "http://"+p.Addr()+patient)
			if err == nil {
				proxies.Add(b, p)
			}
			return b, err
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
		Refuses: refuses,
	})
}
