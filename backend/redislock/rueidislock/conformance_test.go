package rueidislock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
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
	byURL := must.Get(redislock.Open(t.Context(), url))(t)
	t.Cleanup(func() { byURL.Close() })
	opts.Name = "redis"
	var networks sync.Map
	drivertest.Run(t, drivertest.Harness{
		KindsApart: opts.Layout == redislock.Redisson,
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
		LoseAnswers: func(b driver.Backend) func() {
			n, _ := networks.Load(b)
			return n.(*network).loseReplies()
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
	c := must.Get(rueidis.NewClient(single(testserver.SharedRedis(t).Addr())))(t)
	defer c.Close()
	if b, err := New(c, &redislock.Options{Scripts: "on"}); b != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("bad options: %v, %v", b, err)
	}
}

// rueidis would send a release twice, and the second one finds nothing.
func TestConnectionsWithALife(t *testing.T) {
	g := testserver.SharedRedisCluster(t)
	for _, o := range []rueidis.ClientOption{single(testserver.SharedRedis(t).Addr()), {InitAddress: g.Addrs()}, sentinel(testserver.SharedRedisSentinel(t))} {
		o.ConnLifetime = time.Hour
		c := must.Get(rueidis.NewClient(o))(t)
		defer c.Close()
		if b, err := New(c, nil); b != nil || !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "ConnLifetime") {
			t.Errorf("a client of %v with ConnLifetime: %v", c.Mode(), err)
		}
	}
}

// A password that changes, and is refused for a while, ends nothing.
func TestPasswordOfAFunction(t *testing.T) {
	srv := testserver.Redis(t, "--requirepass", "pw")
	var password atomic.Value
	password.Store("pw")
	o := single(srv.Addr())
	o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: "default", Password: password.Load().(string)}, nil
	}
	b := open(t, o, redislock.Options{}, nil)
	r := driver.Request{Hold: driver.Hold{Name: "a", Owner: driver.NewOwner(), Mode: driver.Exclusive, TTL: time.Hour}, Fences: 1}
	acquire(t, b, r)
	admin := must.Get(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr()}, ForceSingleClient: true, Password: "pw"}))(t)
	defer admin.Close()
	for _, command := range [][]string{{"CONFIG", "SET", "requirepass", "pw2"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		must.OK(t, admin.Do(t.Context(), admin.B().Arbitrary(command...).Build()).Error())
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := b.Renew(ctx, []driver.Hold{r.Hold})[0]; err == nil || driver.Final(err) || errors.Is(err, driver.ErrLost) {
			t.Errorf("a renewal with the old password: %v", err)
		}
		other := r
		other.Name, other.Owner = "b", driver.NewOwner()
		if _, err := b.Acquire(ctx, other); err == nil || driver.Final(err) {
			t.Errorf("an attempt with the old password: %v", err)
		}
		cancel()
	}
	password.Store("pw2")
	locktest.Eventually(t, "the lock is released", func() bool { return b.Release(t.Context(), r.Hold) == nil })
}
