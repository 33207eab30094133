package rueidislock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/rueidis"
)

func TestConformance(t *testing.T) {
	srv := testserver.SharedRedis(t)
	conform(t, single(srv.Addr()), redislock.Options{Layout: redislock.Redisson}, srv.URL())
}

func TestLongConformance(t *testing.T) {
	srv := testserver.SharedRedis(t)
	conform(t, single(srv.Addr()), redislock.Options{}, srv.URL())
}

func TestScriptlessConformance(t *testing.T) {
	srv := testserver.SharedRedis(t)
	conform(t, single(srv.Addr()), redislock.Options{Scripts: redislock.ScriptsOff}, srv.URL())
}

func TestLongClusterConformance(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	url := "redis+cluster://" + strings.Join(g.Addrs(), ",")
	for name, opts := range map[string]redislock.Options{"redisson": {Layout: redislock.Redisson}, "no scripts": {Scripts: redislock.ScriptsOff}} {
		t.Run(name, func(t *testing.T) { conform(t, cluster(g), opts, url) })
	}
}

func TestLongSentinelConformance(t *testing.T) {
	g := testserver.SharedRedisSentinel(t)
	conform(t, sentinel(g), redislock.Options{Layout: redislock.Redisson}, "redis+sentinel://"+strings.Join(g.Addrs(), ",")+"/"+testserver.SentinelName)
}

// withClient is a backend whose Close closes the client as well.
type withClient struct {
	*redislock.Backend
	client rueidis.Client
}

func (b withClient) Close() error {
	err := b.Backend.Close()
	b.client.Close()
	return err
}

// conform runs the suite. The backend must refuse the names that a backend opened by url refuses.
func conform(t *testing.T, o rueidis.ClientOption, opts redislock.Options, url string) {
	byURL, err := redislock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { byURL.Close() })
	opts.Name = "redis"
	var networks sync.Map
	drivertest.Run(t, drivertest.Harness{
		Open: func(context.Context) (driver.Backend, error) {
			n := newNetwork(t)
			c := newClient(t, o, n)
			b, err := New(c, &opts)
			both := withClient{b, c}
			networks.Store(both, n)
			return both, err
		},
		Cut: func(b driver.Backend) func() {
			n, _ := networks.Load(b)
			return n.(*network).cut()
		},
		TTL: 500 * time.Millisecond,
		Refuses: func(name string) bool {
			_, err := byURL.Inspect(t.Context(), name)
			return errors.Is(err, driver.ErrInvalid)
		},
	})
}

func TestNames(t *testing.T) {
	srv := testserver.SharedRedis(t)
	for name, want := range map[string]string{"": srv.URL(), "db1": "db1"} {
		if got := open(t, single(srv.Addr()), redislock.Options{Name: name}, nil).Caps().Name; got != want {
			t.Errorf("name %q, want %q", got, want)
		}
	}
}

func TestBadArguments(t *testing.T) {
	if b, err := New(nil, nil); b != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no client: %v, %v", b, err)
	}
	c, err := rueidis.NewClient(single(testserver.SharedRedis(t).Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := New(c, &redislock.Options{Scripts: "on"}); b != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("bad options: %v, %v", b, err)
	}
}
